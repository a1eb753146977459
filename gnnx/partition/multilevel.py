"""Parts by KaMinPar, a multilevel partitioner that makes the edge cut small, in a child process.

It cannot be interrupted and its memory is not gnnx's, hence the child; its one input is a file. It
wants an undirected graph: the file has each pair of nodes that an edge joins, once, no loops.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import ResourceError, UsageError
from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.partition.problem import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.partition.problem import Problem

_CHILD = Path(__file__).with_name("kaminpar_child.py")
_POLL_S = 0.05
_WEIGHT = 1000  # of a mean node, where nodes have weights
# of a ParHIP file: no weights of edges; none of nodes; ids of 32 bits
_NO_EDGE_WEIGHTS, _NO_NODE_WEIGHTS, _NARROW = 1, 2, 8


class Abandoned(Exception):  # noqa: N818 - what happened, not a defect
    """KaMinPar gave no parts; says why."""


def require_kaminpar() -> None:
    """Refuse to begin without KaMinPar.

    Raises
    ------
    UsageError
        It is not installed.
    """
    if importlib.util.find_spec("kaminpar") is None:
        raise UsageError(
            "the method quality needs the package kaminpar, which is not installed",
            "Install gnnx[partition], or give --method stream.",
        )


def multilevel_parts(
    problem: Problem, part: NDArray[np.int32], *, folder: Path, seed: int, time_limit_s: float
) -> None:
    """Give every node a part such that few edges join two parts.

    Parameters
    ----------
    problem
        What is asked; KaMinPar balances one number, the sum of all that count.
    part
        (N,) int32. Overwritten.
    folder
        For the file that KaMinPar reads.
    seed
        Of KaMinPar.
    time_limit_s
        Seconds that KaMinPar may take; writing its input is not counted.

    Raises
    ------
    Abandoned
        It took too long, or failed.
    """
    with tempfile.TemporaryDirectory(prefix="gnnx-", dir=folder) as name:
        source, found = Path(name) / "graph.parhip", Path(name) / "parts"
        Symmetric(problem).write(source)
        command = [sys.executable, str(_CHILD), str(source), str(found)]
        command += [str(problem.num_parts), str(problem.imbalance), str(seed)]
        _wait(command, time_limit_s, problem)
        with found.open("rb", buffering=0) as file:
            size = file.readinto(part.data)
        if size != part.nbytes or _kernels.first_wrong(part, problem.num_parts) >= 0:
            raise Abandoned(f"KaMinPar gave no parts to some of {len(part)} nodes")


def _wait(command: list[str], time_limit_s: float, problem: Problem) -> None:
    """Run a command until it ends, or end it when its time is up."""
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as child,
    ):
        try:
            while child.poll() is None:
                spent_s = time.monotonic() - began
                if spent_s >= time_limit_s:
                    raise Abandoned(f"KaMinPar was not done after {time_limit_s:g} s")
                problem.tell("KaMinPar, seconds", int(spent_s), round(time_limit_s))
                time.sleep(min(_POLL_S, time_limit_s))
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            log.seek(0)
            lines = log.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no message")
            raise Abandoned(f"KaMinPar ended with code {child.returncode}: {last}")


class Symmetric:
    """Writes a graph without directions, loops and parallel edges, in ranges that fit the memory.

    A first pass counts the entries of each row, parallel ones too; then there is a pass for each
    range of rows whose entries fit, to gather them.

    Parameters
    ----------
    problem
        Whose graph and weights.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._graph = problem, problem.graph
        self._narrow = self._graph.num_nodes <= 2**31
        self._index = np.dtype(np.uint32 if self._narrow else np.uint64)

    def write(self, path: Path) -> None:
        """Write the file in the binary format of ParHIP: header, offsets, ids, weights of nodes.

        Parameters
        ----------
        path
            The file.

        Raises
        ------
        ResourceError
            The disk has not that much room.
        """
        num_nodes, num_edges, _ = self._problem.totals
        size = 24 + 8 * (num_nodes + 1) + 2 * num_edges * self._index.itemsize + 8 * num_nodes
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise ResourceError(
                f"{path.parent}: {size} bytes for the input of KaMinPar, {free} free",
                "Free some space, write elsewhere, or give --method stream.",
            )
        with self._graph.ledger.reserve(size, Tier.DISK, "scratch"):
            self._write(path)

    def _write(self, path: Path) -> None:
        num_nodes = self._graph.num_nodes
        starts = self._empty(num_nodes + 1, np.int64)
        starts[:] = 0
        for first, indptr, indices in self._rows("joining directions, counting"):
            _kernels.count_neighbours(first, indptr, indices, starts)
        at = header = 24 + 8 * (num_nodes + 1)
        weights = self._weights()
        try:
            with path.open("wb") as file:
                file.seek(header)
                begin = 0
                while begin < num_nodes:
                    end = self._end_of_range(starts, begin)
                    entries = self._gather(starts, begin, end)
                    file.write(entries.data)
                    at += entries.nbytes
                    begin = end
                    del entries
                if weights is not None:
                    file.write(weights.data)
                starts *= self._index.itemsize
                np.cumsum(starts, out=starts)
                flags = _NO_EDGE_WEIGHTS | (_NARROW if self._narrow else 0)
                flags |= _NO_NODE_WEIGHTS if weights is None else 0
                num_entries = (at - header) // self._index.itemsize
                starts += header
                file.seek(0)
                file.write(np.array([flags, num_nodes, num_entries], np.uint64).tobytes())
                file.write(starts.data)
        except OSError as error:
            raise ResourceError(
                f"{path}: {error.strerror} writing the input of KaMinPar",
                "Free some space, write elsewhere, or give --method stream.",
            ) from error

    def _rows(self, stage: str) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
        for rows in self._graph.iter_rows():
            yield rows
            done = rows.first + len(rows.indptr) - 1
            self._problem.tell(stage, done, self._graph.num_nodes)

    def _empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return self._graph.ledger.empty(size, dtype, Tier.HOST, "partition")

    def _end_of_range(self, starts: NDArray[np.int64], begin: int) -> int:
        """End of the longest range of rows whose entries take half of what HOST has left."""
        free = self._graph.ledger.free_bytes(Tier.HOST)
        capacity = 1 << 62 if free is None else free // 2
        return int(_kernels.end_of_rows(starts[1:], begin, capacity // self._index.itemsize))

    def _gather(self, starts: NDArray[np.int64], begin: int, end: int) -> NDArray[Any]:
        """Neighbours of rows, each once, ascending; `starts` gets the final lengths."""
        length = starts[begin + 1 : end + 1]
        cursor = self._empty(end - begin, np.int64)
        np.copyto(cursor, length)
        entries = self._empty(_kernels.start_rows(cursor), self._index)
        for first, indptr, indices in self._rows(f"joining directions, rows from {begin}"):
            _kernels.gather_neighbours(first, indptr, indices, begin, cursor, entries)
        kept = _kernels.unique_rows(cursor, entries, length)
        return entries[:kept]

    def _weights(self) -> NDArray[np.int64] | None:
        """Weight of each node, None where nodes alone count."""
        if set(self._problem.weights) == {"nodes"}:
            return None
        num_nodes, num_edges, num_train = self._problem.totals
        weights = self._empty(num_nodes, np.int64)
        weights[:] = _WEIGHT if "nodes" in self._problem.weights else 1
        if "edges" in self._problem.weights:
            scale = _WEIGHT * num_nodes / max(1, num_edges)
            for first, indptr, _ in self._rows("weighing"):
                _kernels.add_degrees(first, indptr, scale, weights)
        if "train" in self._problem.weights and num_train:
            scale = _WEIGHT * num_nodes // num_train
            for ids in pieces_of(self._problem.train):
                weights[ids] += scale
        return weights
