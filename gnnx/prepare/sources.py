"""Inputs as they lie on disk: an edge list, an array, an archive, or an OGB folder.

`read_source` finds out what an input holds; what it returns reads the numbers when asked.
Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import Archive, Array, open_npy
from gnnx.prepare.edges import CsrEdges, Edges, Layout, PairEdges, TextEdges
from gnnx.prepare.matrix_market import VALUE, is_matrix, read_values
from gnnx.prepare.report import Dropped
from gnnx.prepare.sparse import SparseRows
from gnnx.prepare.splits import NAMES
from gnnx.prepare.text import TextFormat, TextTable, is_text
from gnnx.prepare.values import ArrayRows

if TYPE_CHECKING:
    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.nodes import Rows
    from gnnx.prepare.values import EdgeRows
    from gnnx.threads import Progress

_KINDS = "Give an edge list (.txt .csv .tsv, .gz), .npy edges, an .npz archive or an OGB folder."
_EDGES = ("edge_index", "edges")
_FEATURES = ("attr_matrix", "features", "x", "node_features", "node_feat")
_LABELS = ("labels", "y", "node_labels", "label", "node_label")


@dataclasses.dataclass
class Source:
    """What an input holds."""

    edges: Edges
    features: Rows | None = None
    labels: Array | None = None
    splits: dict[str, Array | TextTable] = dataclasses.field(default_factory=dict)
    num_nodes: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    """Where it states a number of nodes, and the number."""
    num_edges: int | None = None
    """As it states."""
    notes: list[str] = dataclasses.field(default_factory=list)
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    """What else is kept of the nodes, by name: their keys, the names of their classes."""
    values: dict[str, EdgeRows] = dataclasses.field(default_factory=dict)
    """What edges carry, in their order: ``weight``, ``attr``, ``time``, ``relation``."""
    edge_arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    """What else is kept of the edges, by name: the names of their relations."""
    offered: str | None = None
    """Array of values that edges carry, if they are asked for by name."""
    unknown_ends: int = 0
    """Edges left out since they name nodes that are not there."""
    unknown_at: list[str] = dataclasses.field(default_factory=list)
    """Where the first of them are."""
    dropped: Dropped = dataclasses.field(default_factory=Dropped)
    """Lines of edges that were left out, once the edges are loaded."""


class Reader:
    """Opens inputs.

    Parameters
    ----------
    workspace
        Keeps files open, gives buffers and scratch files.
    form
        How text is cut into fields.
    progress
        Told how far text files have been read.
    drop_lines
        Leave out lines of an edge list that are no edges, which are refused otherwise.
    """

    def __init__(
        self,
        workspace: Workspace,
        form: TextFormat,
        progress: Progress | None = None,
        *,
        drop_lines: bool = False,
    ) -> None:
        self._workspace, self._form, self._progress = workspace, form, progress
        self._drop_lines = drop_lines

    def source(self, path: Path, layout: Layout | None, split_name: str | None) -> Source:
        """Open an input.

        Parameters
        ----------
        path
            A file or a folder.
        layout
            Of an array of edges whose shape is (2, 2).
        split_name
            Of the splits of an OGB folder.

        Returns
        -------
        Source
            Its edges, and whatever else it holds.

        Raises
        ------
        DataError
            It is nothing that can be read.
        UsageError
            A choice is needed.
        """
        if path.is_dir():
            return self._ogb(path, split_name)
        if path.suffix == ".npy":
            return Source(PairEdges(open_npy(self._workspace, path), layout))
        if path.suffix == ".npz":
            return self._archive(path, layout)
        if is_text(path):
            dropped = Dropped()
            kept = dropped if self._drop_lines else None
            table = TextTable(self._workspace, path, self._form, self._progress, kept)
            return Source(TextEdges(table), dropped=dropped)
        if not path.exists():
            raise DataError(f"{path}: No such file or directory", _KINDS)
        raise DataError(f"{path.name}: an input of unknown kind", _KINDS)

    def rows(self, path: Path, dtype: type[np.float32 | np.float64]) -> Array:
        """Open a table of one row a node.

        Parameters
        ----------
        path
            An `.npy` file, or text.
        dtype
            As which text is read.

        Returns
        -------
        Array
            (N,) or (N, F).

        Raises
        ------
        DataError
            It is neither, or damaged.
        """
        if path.suffix == ".npy":
            return open_npy(self._workspace, path)
        if is_text(path):
            return self._table(path).numbers(dtype)
        raise DataError(f"{path.name}: a table of unknown kind", "Give .npy, .csv, .tsv or .txt.")

    def split(self, path: Path) -> Array | TextTable:
        """Open a split: ids or flags, `.npy` or text.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Array or TextTable
            Which `Splits.read` reads.

        Raises
        ------
        DataError
            It is neither, or damaged.
        """
        return self._table(path) if is_text(path) else self.rows(path, np.float64)

    def edge_values(self, source: Path, given: str, what: str) -> EdgeRows:
        """Open values of the edges of an input.

        Parameters
        ----------
        source
            The input.
        given
            A file with a row an edge; of an archive, the name of an array; of Matrix Market,
            ``value``; of an edge list in text, numbers of columns, from 0, with commas between
            them.
        what
            Of the edge, for messages.

        Returns
        -------
        EdgeRows
            A row an edge.

        Raises
        ------
        UsageError
            It is nothing of these.
        """
        if Path(given).exists():
            return ArrayRows(self.rows(Path(given), np.float64))
        if source.suffix == ".npz":
            return ArrayRows(Archive(self._workspace, source).array(given))
        if is_matrix(source) and given == VALUE:
            return read_values(self._workspace, source, f"--edge-{what}", self._progress)
        columns = given.split(",")
        if not (is_text(source) and all(column.isdecimal() for column in columns)):
            raise UsageError(
                f"--edge-{what} {given}: no such file, and no column of {source.name}",
                f"Give a file with a row an edge, or {VALUE}."
                if is_matrix(source)
                else "Give a file with a row an edge, or numbers of columns, from 0.",
            )
        if self._drop_lines:
            raise UsageError(
                f"--edge-{what} {given} and --bad-lines drop: which value is whose is not known",
                "Mend the lines.",
            )
        numbers = self._table(source).numbers(np.float64)
        chosen = [int(column) for column in columns]
        if max(chosen) >= numbers.width:
            raise UsageError(
                f"--edge-{what} {given}: {source.name} has {numbers.width} columns",
                "Columns are counted from 0.",
            )
        return ArrayRows(numbers, chosen)

    def _table(self, path: Path, form: TextFormat | None = None) -> TextTable:
        return TextTable(self._workspace, path, form or self._form, self._progress)

    def _archive(self, path: Path, layout: Layout | None) -> Source:
        archive = Archive(self._workspace, path)
        source = self._archive_edges(archive, path, layout)
        source.features = self._archive_features(archive)
        for name in _LABELS:
            if name in archive:
                source.labels = archive.array(name)
                break
        for split in NAMES:
            for name in (f"{split}_mask", f"{split}_masks", f"{split}_idx", f"idx_{split}"):
                if name in archive:
                    source.splits[split] = flags = archive.array(name)
                    if len(flags.shape) == 2:
                        source.notes.append(f"{flags.where}: the first of {len(flags)} is taken")
                    break
        return source

    def _archive_edges(self, archive: Archive, path: Path, layout: Layout | None) -> Source:
        for prefix in ("", "adj_"):
            if f"{prefix}indptr" in archive and f"{prefix}indices" in archive:
                matrix = _sparse(archive, prefix)
                if matrix.shape[0] != matrix.shape[1]:
                    raise DataError(
                        f"{path.name}: the adjacency matrix is {matrix.shape[0]} by "
                        f"{matrix.shape[1]}",
                        "Give a square one: rows are sources, columns destinations.",
                    )
                source = Source(CsrEdges(matrix))
                source.num_nodes.append((matrix.where, matrix.shape[0]))
                source.offered = None if matrix.data is None else f"{prefix}data"
                return source
        for name in _EDGES:
            if name in archive:
                return Source(PairEdges(archive.array(name), layout))
        for name in archive.names:
            archive.array(name)  # a pickled matrix is the likelier cause, and is named
        found = ", ".join(sorted(archive.names)) or "nothing"
        raise DataError(
            f"{path.name}: no edges in it: it holds {found}",
            "Name them indptr and indices, adj_indptr and adj_indices, edge_index or edges.",
        )

    def _archive_features(self, archive: Archive) -> Rows | None:
        if "attr_indptr" in archive and "attr_indices" in archive:
            return _sparse(archive, "attr_")
        return next((archive.array(name) for name in _FEATURES if name in archive), None)

    def _ogb(self, folder: Path, split_name: str | None) -> Source:
        """Read an OGB folder of node property prediction: raw/ and split/<name>/."""
        raw, plain = folder / "raw", TextFormat(",", header=False, comment="")
        if (raw / "edge.csv.gz").exists():
            table = self._table(raw / "edge.csv.gz", plain)
            source = Source(TextEdges(table))
            if (raw / "node-feat.csv.gz").exists():
                source.features = self._table(raw / "node-feat.csv.gz", plain).numbers(np.float32)
            nodes, edges = (
                self._table(raw / f"num-{noun}-list.csv.gz", plain).ids(1, 1 << 62)
                for noun in ("node", "edge")
            )
        elif (raw / "data.npz").exists():
            archive = Archive(self._workspace, raw / "data.npz")
            source = self._archive_edges(archive, raw / "data.npz", None)
            source.features = self._archive_features(archive)
            nodes, edges = archive.array("num_nodes_list"), archive.array("num_edges_list")
        else:
            raise DataError(
                f"{folder}: neither raw/edge.csv.gz nor raw/data.npz is in it",
                _KINDS,
            )
        source.num_nodes.append((nodes.where, self._single(nodes)))
        source.num_edges = self._single(edges)
        if (raw / "node-label.csv.gz").exists():
            source.labels = self._table(raw / "node-label.csv.gz", plain).numbers(np.float64)
        elif (raw / "node-label.npz").exists():
            source.labels = Archive(self._workspace, raw / "node-label.npz").array("node_label")
        if (raw / "edge-feat.csv.gz").exists():
            table = self._table(raw / "edge-feat.csv.gz", plain)
            source.values["attr"] = ArrayRows(table.numbers(np.float32))
        chosen = _ogb_split(folder / "split", split_name)
        if chosen is not None:
            for name, file in zip(NAMES, ("train", "valid", "test"), strict=True):
                source.splits[name] = self._table(chosen / f"{file}.csv.gz", plain)
        return source

    def _single(self, numbers: Array) -> int:
        """Return the only number of a list with one entry a graph."""
        if numbers.width != 1 or len(numbers) != 1:
            raise DataError(
                f"{numbers.where}: {len(numbers)} graphs, not one", "Give a folder with one graph."
            )
        (piece,) = numbers.pieces()
        return int(piece.reshape(1)[0])


def _sparse(archive: Archive, prefix: str) -> SparseRows:
    indptr, indices = archive.array(f"{prefix}indptr"), archive.array(f"{prefix}indices")
    data = archive.array(f"{prefix}data") if f"{prefix}data" in archive else None
    num_columns = len(indptr) - 1
    if f"{prefix}shape" in archive:
        shape = archive.array(f"{prefix}shape")
        values = np.empty(2, shape.dtype)
        if shape.shape != (2,) or shape.dtype.kind not in "iu":
            raise DataError(f"{shape.where}: not a shape of two numbers", "Give (rows, columns).")
        shape.read_into(values, 0)
        if values[0] != len(indptr) - 1:
            raise DataError(
                f"{shape.where}: {values[0]} rows, {indptr.where}: {len(indptr) - 1}",
                "Give the indptr and shape of one matrix.",
            )
        num_columns = int(values[1])
    if f"{prefix}format" in archive:  # as scipy.sparse.save_npz writes it
        kind = archive.array(f"{prefix}format")
        text = np.empty(1, kind.dtype)
        kind.read_into(text, 0)
        name = text.astype(str)[0]
        if name != "csr":
            raise DataError(f"{kind.where}: {name!s} is not csr", "Save matrix.tocsr() instead.")
    return SparseRows(indptr, indices, data, num_columns)


def _ogb_split(folder: Path, name: str | None) -> Path | None:
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if name is not None and name not in found:
        raise UsageError(f"split {name!r} is not in {folder}", f"Choose from {found}.")
    if name is None and len(found) > 1:
        raise UsageError(f"{folder}: several splits: {', '.join(found)}", "Give --split NAME.")
    return folder / (name or found[0]) if found else None
