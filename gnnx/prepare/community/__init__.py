"""The community graph: a random graph of any size that a GNN can learn from, made in pieces.

Letters: N nodes, E edges, F feature width, K communities, C classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx import threads
from gnnx.errors import UsageError
from gnnx.memory import Budget, Ledger
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.community import _kernels
from gnnx.prepare.nodes import write_labels
from gnnx.prepare.report import Report
from gnnx.prepare.splits import Shares, Splits
from gnnx.random import Key
from gnnx.store import DatasetWriter, enough_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.threads import Progress

_COMMUNITY_NODES = 1 << 15
_FEWEST_COMMUNITIES = 16
_LARGEST_SCALE = 64.0
_SAMPLES = 1024
_BLOCK = 1 << 16  # rows whose degrees are summed up in order
_ROUNDS = 4  # of the permutation
_GRAIN = 1 << 10  # rows
_ORDER, _EDGES, _LABELS, _MEANS, _NOISE, _SAMPLING = range(6)


@enough_named()
def synth(  # noqa: PLR0913 - each argument is an option of the verb
    out: Path | str,
    *,
    num_nodes: int,
    num_edges: int,
    num_features: int,
    num_classes: int,
    seed: int = 0,
    split: str = "0.1,0.1,0.8",
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Make a random graph with communities, power-law degrees and features that hint at the class.

    Nodes stand in a random order; K communities are equal ranges of it, as many for every class,
    at least 16, of 32768 nodes or fewer. Community k has class k mod C; a node's label is its
    community's class with probability 0.9, else any. A node at place x of its community, x in
    (1e-4, 1], has popularity x^(-3/4): degrees have a tail of exponent 7/3, and lie between 0.28
    and 280 times their mean.

    - In-degrees are popularities scaled to the sum E and rounded, so E edges are stored exactly.
    - Each source is of the node's own community with probability 0.7, else of another, by
      popularity. A row has no loop, and no source twice unless it is too long for its community.
    - Features are float32 x = r·mean[label] + noise, of unit variance; r is such that the nearest
      mean is right for a share 0.62 + 0.2 / C of nodes, the most that a linear model can reach.

    Every number is a function of (seed, node, position), so the bytes depend neither on the
    memory nor on the threads.

    Parameters
    ----------
    out
        Folder to make.
    num_nodes
        N.
    num_edges
        E, directed.
    num_features
        F; 0 for none.
    num_classes
        C.
    seed
        Which graph.
    split
        Shares of the nodes, or "per-class:20,30,rest".
    memory
        Bytes of host memory, such as "512MiB". Default: 80 % of what is free.
    overwrite
        Replace a data set that is there already.
    progress
        Called with (stage, done, total).

    Raises
    ------
    UsageError
        A number is negative, or there are edges but no two nodes.
    ResourceError
        Memory or disk space does not suffice, or another process writes `out`.
    """
    if min(num_nodes, num_edges, num_features) < 0 or num_classes < 1:
        raise UsageError(
            f"{num_nodes} nodes, {num_edges} edges, {num_features} features, "
            f"{num_classes} classes cannot be",
            "Give one class at least, and no negative number.",
        )
    if num_edges and num_nodes < 2:
        raise UsageError(
            f"{num_edges} edges without loops between {num_nodes} nodes", "Give 2 nodes or more."
        )
    shares = Shares(split)
    ledger = Ledger(Budget.parse(memory))
    with (
        DatasetWriter(Path(out), overwrite=overwrite, ledger=ledger) as writer,
        Workspace(writer.partial.absolute(), ledger) as workspace,
    ):
        graph = _CommunityGraph(num_nodes, num_classes, seed, workspace, progress)
        report = Report(num_nodes=num_nodes, num_features=num_features)
        splits = Splits(num_nodes, workspace)
        write_labels(graph, splits, writer, report)
        writer.nodes("node", num_nodes, num_classes=num_classes)
        splits.draw(shares, graph, seed)
        splits.write(writer, has_labels=True, unlabeled="refuse", report=report)
        del splits
        graph.write_edges(num_edges, writer)
        if num_features:
            graph.write_features(num_features, writer)


def linear_accuracy(num_classes: int) -> float:
    """Accuracy that the best linear model on a node's own features has."""
    return 0.62 + 0.2 / num_classes


class _CommunityGraph:
    """The model of `synth`; its labels are read in pieces like those of an input."""

    def __init__(
        self,
        num_nodes: int,
        num_classes: int,
        seed: int,
        workspace: Workspace,
        progress: Progress | None,
    ) -> None:
        self._num_nodes, self._num_classes, self._seed = num_nodes, num_classes, seed
        self._workspace, self._progress = workspace, progress
        wanted = max(_FEWEST_COMMUNITIES, round(num_nodes / _COMMUNITY_NODES))
        per_class = -(-wanted // num_classes)
        rounds = [Key(seed, step=turn, layer=_ORDER).fold() for turn in range(_ROUNDS)]
        self._plan = _kernels.Plan(
            num_nodes=num_nodes,
            num_communities=max(1, min(num_classes * per_class, num_nodes)),
            half_bits=max(1, -(-(num_nodes - 1).bit_length() // 2)),
            keys=np.array(rounds, np.uint64),
        )

    def __len__(self) -> int:
        return self._num_nodes

    def _key(self, purpose: int) -> np.uint64:
        return np.uint64(Key(self._seed, layer=purpose).fold())

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._progress:
            self._progress(stage, done, total)

    def pieces(self) -> Iterator[NDArray[np.int64]]:
        """Labels in order; each piece is valid until the next one is asked for."""
        rows = min(self._workspace.rows_of(8), max(1, self._num_nodes))
        labels = self._workspace.empty(rows, np.int64, "labels")
        for begin in range(0, self._num_nodes, rows):
            piece = labels[: self._num_nodes - begin]
            self._draw_labels(begin, piece)
            yield piece

    def _draw_labels(self, first: int, labels: NDArray[np.int64]) -> None:
        key = self._key(_LABELS)
        threads.run(
            lambda begin, end: _kernels.draw_labels(
                first + begin, self._plan, self._num_classes, key, labels[begin:end]
            ),
            len(labels),
            grain=_GRAIN,
        )

    def write_edges(self, num_edges: int, writer: DatasetWriter) -> None:
        """Write E edges, rows in order."""
        indptr = writer.array("edges/node-edge-node/indptr", (self._num_nodes + 1,), "int64")
        narrow = np.dtype(np.int32 if self._num_nodes <= 2**31 else np.int64)
        indices = writer.array("edges/node-edge-node/indices", (num_edges,), narrow.name)
        writer.edges(("node", "edge", "node"), num_edges)
        num_blocks = -(-self._num_nodes // _BLOCK)
        before = self._weights_before(num_blocks)
        starts = self._workspace.empty(_BLOCK + 1, np.int64, "edges")
        starts[0] = 0
        indptr.append(starts[:1])
        for block in range(num_blocks):
            first = block * _BLOCK
            rows = min(_BLOCK, self._num_nodes - first)
            _kernels.end_rows(
                first, before[block], before[-1], num_edges, self._plan, starts[1 : rows + 1]
            )
            indptr.append(starts[1 : rows + 1])
            for begin, end in self._cuts(starts[: rows + 1]):
                indices.append(self._sources(first + begin, starts[begin : end + 1], narrow))
                self._tell("edges", int(starts[end]), num_edges)
            starts[0] = starts[rows]

    def _weights_before(self, num_blocks: int) -> NDArray[np.float64]:
        """Sum of the popularities before each block of rows, and of all."""
        sums = self._workspace.empty(num_blocks + 1, np.float64, "edges")
        sums[0] = 0

        def add(begin: int, end: int) -> None:
            for block in range(begin, end):
                last = min((block + 1) * _BLOCK, self._num_nodes)
                sums[block + 1] = _kernels.sum_weights(block * _BLOCK, last, self._plan)

        threads.run(add, num_blocks)
        np.cumsum(sums, out=sums)
        return sums

    def _cuts(self, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Ranges of rows whose sources make a piece; at least a row each."""
        limit, begin = self._workspace.rows_of(4), 0
        while begin < len(starts) - 1:
            end = int(np.searchsorted(starts, starts[begin] + limit, side="right")) - 1
            end = max(end, begin + 1)
            yield begin, end
            begin = end

    def _sources(
        self, first_row: int, starts: NDArray[np.int64], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        sources = self._workspace.empty(int(starts[-1] - starts[0]), dtype, "edges")
        key = self._key(_EDGES)
        threads.run(
            lambda begin, end: _kernels.draw_rows(
                first_row, starts, begin, end, self._plan, key, sources
            ),
            len(starts) - 1,
            grain=_GRAIN,
        )
        return sources

    def write_features(self, width: int, writer: DatasetWriter) -> None:
        """Write F features of every node, in pieces."""
        means = self._workspace.empty((self._num_classes, width), np.float64, "features")
        _kernels.draw_means(self._key(_MEANS), means)
        means *= _kernels.scale_for(
            linear_accuracy(self._num_classes),
            means,
            self._key(_SAMPLING),
            _LARGEST_SCALE,
            self._workspace.empty((self._num_classes, self._num_classes), np.float64, "features"),
            self._workspace.empty((_SAMPLES, self._num_classes), np.float64, "features"),
        )
        x = writer.array("nodes/node/x", (self._num_nodes, width), "float32")
        key, rows = self._key(_NOISE), self._workspace.rows_of(4 * width + 8)
        rows = min(rows, max(1, self._num_nodes))
        features = self._workspace.empty((rows, width), np.float32, "features")
        labels = self._workspace.empty(rows, np.int64, "features")
        for first in range(0, self._num_nodes, rows):
            count = min(rows, self._num_nodes - first)
            self._draw_labels(first, labels[:count])
            threads.run(
                lambda begin, end: _kernels.draw_features(
                    first + begin,  # noqa: B023 - runs before the loop goes on
                    labels[begin:end],
                    means,
                    key,
                    features[begin:end],
                ),
                count,
                grain=_GRAIN,
            )
            x.append(features[:count])
            self._tell("features", first + count, self._num_nodes)
