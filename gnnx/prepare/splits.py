"""Training, validation and test nodes: read from the input, or drawn.

Letters: N nodes, M nodes that may be drawn. A byte a node holds a bit for each split, and one for
nodes that have a label.
"""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare import _kernels
from gnnx.prepare.nodes import MultiLabels
from gnnx.prepare.report import EXAMPLES
from gnnx.prepare.text import TextTable, outside
from gnnx.random import Key, permute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.report import Report
    from gnnx.store import DatasetWriter

NAMES = ("train", "val", "test")
DEFAULT_SHARES = "0.6,0.2,0.2"
"""Shares that are drawn where an input has no splits and none are asked for."""
_LABELLED = 8
_PIECE = 1 << 15  # nodes


class LabelPieces(Protocol):
    """Labels of all nodes, read in pieces as often as needed."""

    def __len__(self) -> int: ...

    def pieces(self) -> Iterator[NDArray[np.int64]]:
        """Labels in order, -1 for none; each piece is valid until the next one is asked for."""


class Shares:
    """How nodes are drawn into splits, written ``"0.6,0.2,0.2"`` or ``"per-class:20,30,rest"``.

    Parameters
    ----------
    text
        Three shares of the nodes that have a label, or three numbers of nodes of each class, the
        last of which may be ``rest``.

    Raises
    ------
    UsageError
        The text says neither.
    """

    def __init__(self, text: str) -> None:
        kind, _, rest = text.rpartition(":")
        self.per_class = kind == "per-class"
        sizes = [size.strip() for size in rest.split(",")]
        if self.per_class and sizes[-1] == "rest":
            sizes[-1] = "inf"
        try:
            self._sizes = [float(size) for size in sizes]
        except ValueError:
            self._sizes = []
        total = sum(self._sizes)
        wrong = not self.per_class and (kind or total > 1 + 1e-9)
        if len(self._sizes) != 3 or wrong or not all(size >= 0 for size in self._sizes):
            raise UsageError(
                f"split {text!r} cannot be", "Give 0.6,0.2,0.2 or per-class:20,30,rest."
            )

    def bounds(self, num_nodes: int) -> NDArray[np.int64]:
        """Cut a drawn order of M nodes into the three splits.

        Parameters
        ----------
        num_nodes
            M: of a class, or of all.

        Returns
        -------
        ndarray, (3,) int64
            Where each ends, at most M. Shares are rounded so that whole shares leave no node out.
        """
        scale = 1 if self.per_class else num_nodes
        ends = [min(size * scale, num_nodes) for size in itertools.accumulate(self._sizes)]
        return np.array([round(end) for end in ends], np.int64)


class Splits:
    """Which nodes are in which split.

    Parameters
    ----------
    num_nodes
        N.
    workspace
        Gives a byte a node.
    """

    def __init__(self, num_nodes: int, workspace: Workspace) -> None:
        self._workspace = workspace
        self._marks = workspace.empty(num_nodes, np.uint8, "splits")
        self._marks[:] = 0

    def mark_labelled(self, first: int, labels: NDArray[np.int64]) -> int:
        """Note which nodes have a label.

        Parameters
        ----------
        first
            The first node.
        labels
            (r,), of the nodes from there on.

        Returns
        -------
        int
            How many of them have one.
        """
        marks = self._marks[first : first + len(labels)]
        return int(_kernels.mark_flags(labels, -1, np.uint8(_LABELLED), marks))

    def read(self, tables: Mapping[str, Array | TextTable]) -> None:
        """Take the splits from the input.

        Parameters
        ----------
        tables
            By name of the split: (n,) ids or (N,) flags; of flags (k, N), those of the first.

        Raises
        ------
        DataError
            An id is outside or given twice, or the flags are not as many as the nodes.
        """
        num_nodes = len(self._marks)
        for name, source in tables.items():
            bit = np.uint8(1 << NAMES.index(name))
            table = source.ids(1, num_nodes) if isinstance(source, TextTable) else source
            if table.dtype == np.bool_:
                self._read_flags(table, bit)
            else:
                self._read_ids(table, bit)

    def _read_flags(self, table: Array, bit: np.uint8) -> None:
        num_nodes = len(self._marks)
        if table.shape[-1] != num_nodes or len(table.shape) > 2:
            raise DataError(
                f"{table.where}: flags of shape {table.shape} for {num_nodes} nodes",
                "Give one flag a node, or the ids of the nodes.",
            )
        flags = self._workspace.empty(num_nodes, np.bool_, "splits")
        table.read_into(flags, 0)
        _kernels.mark_flags(flags, False, bit, self._marks)

    def _read_ids(self, table: Array, bit: np.uint8) -> None:
        if table.width != 1 or table.dtype.kind not in "iu":
            raise DataError(
                f"{table.where}: {table.dtype} of shape {table.shape} is no list of nodes",
                "Give one flag a node, or the ids of the nodes.",
            )
        rows = self._workspace.rows_of(8)
        buffer = self._workspace.empty(min(rows, max(1, len(table))), np.int64, "splits")
        for begin in range(0, len(table), rows):
            ids = buffer[: len(table) - begin]
            table.read_into(ids, begin)
            wrong = _kernels.mark_ids(ids, bit, self._marks)
            if wrong >= 0:
                where, node = f"{table.where}: entry {begin + wrong}", int(ids[wrong])
                if not 0 <= node < len(self._marks):
                    raise outside(where, node, len(self._marks))
                raise DataError(f"{where}: node {node} is there twice", "List each node once.")

    def draw(self, shares: Shares, labels: LabelPieces | None, seed: int) -> None:
        """Draw all splits, from the nodes that have a label where any may have one.

        The r-th node of M gets place p = permute(r) of a keyed permutation of M places; the first
        places are training nodes, the next ones validation, the next ones test.

        Parameters
        ----------
        shares
            How many nodes go where.
        labels
            Of all nodes; needed for shares per class.
        seed
            Of the permutations: key (seed) over all nodes, (seed, class + 1) within a class.

        Raises
        ------
        UsageError
            Shares per class without labels, or with several labels a node.
        """
        if shares.per_class and labels is None:
            raise UsageError("a split per class needs labels", "Give --labels, or shares.")
        if shares.per_class and isinstance(labels, MultiLabels):
            raise UsageError("a split per class, but nodes have several labels", "Give shares.")
        class_of = labels if shares.per_class else None
        sizes: collections.Counter[int] = collections.Counter()
        for group, nodes in self._groups(class_of, drawn_from_all=labels is None):
            sizes[group] += len(nodes)
        ranks: collections.Counter[int] = collections.Counter()
        for group, nodes in self._groups(class_of, drawn_from_all=labels is None):
            positions = np.arange(ranks[group], ranks[group] + len(nodes))
            places = permute(positions, sizes[group], Key(seed, epoch=group))
            split = np.searchsorted(shares.bounds(sizes[group]), places, side="right")
            chosen = split < len(NAMES)
            self._marks[nodes[chosen]] |= np.left_shift(1, split[chosen]).astype(np.uint8)
            ranks[group] += len(nodes)

    def _groups(
        self, class_of: LabelPieces | None, *, drawn_from_all: bool
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Nodes to draw from, in order, in pieces of one group: 0 for all, or class + 1."""
        if class_of is None:
            for begin in range(0, len(self._marks), _PIECE):
                marks = self._marks[begin : begin + _PIECE]
                wanted = marks >= 0 if drawn_from_all else marks & np.uint8(_LABELLED)
                yield 0, begin + np.flatnonzero(wanted)
            return
        begin = 0
        for labels in class_of.pieces():
            for at in range(0, len(labels), _PIECE):
                part = labels[at : at + _PIECE]
                order = np.argsort(part, kind="stable")
                classes, starts = np.unique(part[order], return_index=True)
                for label, nodes in zip(classes, np.split(order, starts[1:]), strict=True):
                    if label >= 0:
                        yield int(label) + 1, begin + at + nodes
            begin += len(labels)

    def write(
        self,
        writer: DatasetWriter,
        *,
        has_labels: bool,
        unlabeled: Literal["refuse", "ignore"],
        report: Report,
    ) -> None:
        """Write the nodes of each split, ascending.

        Parameters
        ----------
        writer
            Of the data set.
        has_labels
            Whether nodes without a label matter.
        unlabeled
            What to do about them.
        report
            Told the sizes.

        Raises
        ------
        DataError
            A split has a node without a label, and they are refused.
        """
        for i, name in enumerate(NAMES):
            bit = 1 << i
            out = writer.array(f"nodes/node/{name}", (None,), "int64")
            known = (bit | _LABELLED) if has_labels else bit
            for nodes in self._marked(known, known):
                out.append(nodes)
            setattr(report, name, out.num_rows)
            if not has_labels:
                continue
            count, first = self._named(bit | _LABELLED, bit)
            if count and unlabeled == "refuse":
                more = ", …" if count > 1 else ""
                raise DataError(
                    f"{name}: unlabelled nodes: {count} of {out.num_rows + count}, "
                    f"{first[0]}{more}",
                    "Give them labels, or leave them out with --unlabeled ignore.",
                )
            report.unlabelled_in_splits += count
            places = report.examples.get("unlabelled_in_splits", [])
            places += [f"{name}: {node}" for node in first]
            if places:
                report.examples["unlabelled_in_splits"] = places[:EXAMPLES]
        for one, two in itertools.combinations(range(len(NAMES)), 2):
            both = 1 << one | 1 << two
            count, first = self._named(both, both)
            report.in_two_splits += count
            places = report.examples.get("in_two_splits", [])
            places += [f"{NAMES[one]} and {NAMES[two]}: {node}" for node in first]
            if places:
                report.examples["in_two_splits"] = places[:EXAMPLES]

    def _named(self, mask: int, value: int) -> tuple[int, list[str]]:
        """Count nodes whose marks under a mask are `value`, and name the first."""
        count, first = 0, list[str]()
        for nodes in self._marked(mask, value):
            first += [f"node {node}" for node in nodes[: EXAMPLES - len(first)]]
            count += len(nodes)
        return count, first

    def _marked(self, mask: int, value: int) -> Iterator[NDArray[np.int64]]:
        """Nodes whose marks under a mask are `value`, ascending, in pieces."""
        for begin in range(0, len(self._marks), _PIECE):
            marks = self._marks[begin : begin + _PIECE]
            yield begin + np.flatnonzero(marks & np.uint8(mask) == value)
