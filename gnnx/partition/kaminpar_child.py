"""Runs KaMinPar on a file, in a process of its own that can be ended; imports nothing of gnnx.

usage: kaminpar_child.py GRAPH.parhip OUT PARTS IMBALANCE SEED
"""

import array
import ctypes
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_MANY_PARTS = 1024  # from here on KaMinPar has contexts of its own


def main() -> None:
    """Partition the graph; the part of each node goes to OUT as int32."""
    # whoever waits for this process may be killed: nobody would end it then
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    import kaminpar

    graph_path, out, num_parts, imbalance, seed = sys.argv[1:]
    kaminpar.reseed(int(seed))
    context = (
        kaminpar.terapart_largek_context()
        if int(num_parts) >= _MANY_PARTS
        else kaminpar.terapart_context()
    )
    graph = kaminpar.load_graph(graph_path, kaminpar.GraphFileFormat.PARHIP, compress=True)
    # one thread: with more, equal input does not give equal parts
    parts = kaminpar.KaMinPar(1, context).compute_partition(
        graph, k=int(num_parts), eps=float(imbalance)
    )
    Path(out).write_bytes(array.array("i", parts).tobytes())


if __name__ == "__main__":
    main()
