"""How many rows are read beside the fewest that any cache could have read? Counts, no times.

usage: benchmarks/belady.py FOLDER [--shares 0.1 0.2] [--graphs rmat communities sparse]

Makes three graphs in FOLDER, unless they are there: R-MAT of 2^20 nodes and 16.8 million edges and
communities of 4096 nodes, as large, with 5 % of the nodes to train on; R-MAT of 2^21 nodes with
1 %. Batches of 256 with 10,10,10 neighbours. HOST is what holds the graph, the batches and the
given share of the rows. Of the second epoch is printed how many rows came from the file, in percent
of those that batches asked for: as the plan has it (packs are written once and read back, which is
not counted), by windows in memory, and a batch at a time beside the likeliest rows; the least by
Belady's rule; and the plan's over the larger of the last two, where the least counts 1.1 times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sides

import gnnx
from gnnx.cache import BeladyBound, decide, held_bytes
from gnnx.memory import Budget, Ledger
from gnnx.prepare import prepare, synth

FANOUTS, BATCH_SIZE, WIDTH = (10, 10, 10), 256, 32
GRAPHS = {"rmat": (20, 0.05), "communities": (20, 0.05), "sparse": (21, 0.01)}
EDGES_A_NODE = 16
MOST_USES = 60_000_000  # of rows in an epoch: all are followed, so that the bound is exact


def make(path: Path, name: str) -> None:
    """Make a graph with random features."""
    scale, train = GRAPHS[name]
    num_nodes, num_edges = 1 << scale, EDGES_A_NODE << scale
    if name == "communities":
        sizes = {"num_nodes": num_nodes, "num_edges": num_edges, "num_features": WIDTH}
        split = f"{train:g},0.001,0.001"
        synth(path, **sizes, num_classes=num_nodes >> 12, split=split, seed=0)
        return
    rng = np.random.default_rng(1)
    pairs = np.zeros((2, num_edges), np.int32)
    for _ in range(scale):  # Chakrabarti et al., 2004
        draw = rng.random(num_edges, np.float32)
        pairs *= 2
        pairs[0] += draw >= 0.76
        pairs[1] += ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
    pairs = rng.permutation(num_nodes).astype(np.int32)[pairs]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        files = {
            "features": rng.random((num_nodes, WIDTH), np.float32),
            "labels": rng.integers(0, 16, num_nodes),
            "train": rng.permutation(num_nodes)[: int(train * num_nodes)],
        }
        for key, array in {**files, "pairs": pairs}.items():
            np.save(f"{folder}/{key}.npy", array)
        given: Any = {key: f"{folder}/{key}.npy" for key in files}
        prepare(f"{folder}/pairs.npy", path, num_nodes=num_nodes, **given)


def loader_of(dataset: gnnx.Dataset, lookahead: Any) -> gnnx.Loader:
    return gnnx.Loader(dataset, FANOUTS, BATCH_SIZE, lookahead=lookahead)


def capacity(path: Path, memory: int) -> int:
    """Rows that all held for them would hold, where windows are made."""
    with gnnx.open(path, memory=memory) as dataset:
        strategy = decide(dataset, loader_of(dataset, "windows").demands).strategy
        source = dataset.features
        return held_bytes(strategy, source.num_rows, source.row_bytes) // source.row_bytes


def second_epoch(path: Path, memory: int, lookahead: Any, bound: BeladyBound | None) -> Any:
    """Run two epochs; the bound follows all rows of the second, and begins with those that stay."""
    with gnnx.open(path, memory=memory) as dataset:
        loader = loader_of(dataset, lookahead)
        loader.until = 3  # as in the middle of a training
        for epoch in range(2):
            if bound is not None and epoch == 1:
                for rows in loader.features.held():
                    bound.hold(rows)
            for step, batch in enumerate(loader):
                if bound is not None and epoch == 1:
                    bound.add(step, batch.n_id.numpy())
                del batch
        stats = loader.stats
        loader.leave()
        return stats


def main() -> None:
    """Count, graph by graph and share by share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    arguments = parser.parse_args()
    found = []
    for name in arguments.graphs:
        path = arguments.folder / f"belady-{name}"
        if not path.exists():
            make(path, name)
        num_nodes, row_bytes = 1 << GRAPHS[name][0], 4 * WIDTH
        for share in arguments.shares:
            memory = 128 << 20
            for _ in range(3):  # what is held for rows grows as memory does
                memory += row_bytes * (round(share * num_nodes) - capacity(path, memory))
            held = capacity(path, memory)
            bound = BeladyBound(num_nodes, MOST_USES, held, Ledger(Budget()))
            auto, windows, rows = (
                second_epoch(path, memory, way, None if way else bound)
                for way in ("auto", "windows", None)
            )
            counts = (each.rows_from_disk for each in (auto, windows, rows))
            shares = (count / auto.rows_requested for count in (*counts, bound.least_fetched()))
            read, staged, fixed, least = (100 * share for share in shares)
            kind = "packs" if auto.rows_from_packs else "windows" if auto.windows else "rows"
            bar = read / max(1.1 * least, fixed)
            found.append((name, held / num_nodes, kind, read, staged, fixed, least, bar))
            print(found[-1], file=sys.stderr, flush=True)
    names = "graph", "held", "plan", "plan %", "windows %", "rows %", "least %", "plan / bar"
    sides.show(names, found)


if __name__ == "__main__":
    main()
