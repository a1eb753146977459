"""Typed graphs: what an input holds of each node and edge type, and its way into a data set.

Letters: N nodes of a type, E edges of a type. What writes a graph without types writes each type,
in the place that is told it. Each is a stage of the writer, at whose end what its arrays hold of
the memory is given back, however many types there are.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.memory import Budget, Ledger
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.csr import CsrBuilder, EdgeRules
from gnnx.prepare.nodes import labels_of, write_features, write_labels
from gnnx.prepare.report import Report
from gnnx.prepare.splits import DEFAULT_SHARES, Shares, Splits
from gnnx.prepare.text import outside
from gnnx.prepare.typed_layouts import read_graphbolt, read_ogb
from gnnx.prepare.typed_recipe import TypedRecipe, is_typed
from gnnx.prepare.typed_tables import read_recipe
from gnnx.store import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.graph import EdgeType
    from gnnx.prepare.edges import EdgePiece, EdgeStream
    from gnnx.prepare.recipe import Options
    from gnnx.prepare.typed_tables import TypedSource
    from gnnx.threads import Progress


@dataclasses.dataclass
class TypedReport:
    """Counts of a preparation of a typed graph; those that are 0 are left out."""

    nodes: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """By node type."""
    edges: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """By edge type."""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    """What may be wrong with the data, by type and name of the count: what ``strict`` refuses."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What was read otherwise than it stands in the input."""

    def take(self, kind: str, where: str, report: Report, *, duplicates_kept: bool) -> None:
        """Take over what was found of a type.

        Parameters
        ----------
        kind
            Of nodes or edges.
        where
            ``"nodes"`` or ``"edges"``.
        report
            Of the type.
        duplicates_kept
            Whether parallel edges are stored.
        """
        report.judge(kind, duplicates_kept=duplicates_kept, strict=False)
        told = {name: value for name, value in report.counts().items() if value}
        getattr(self, where)[kind] = told
        self.problems |= {f"{kind}: {name}": text for name, text in report.problems.items()}
        self.notes += report.notes

    def refuse(self, where: str) -> None:
        """Refuse data with problems, if there are any."""
        if self.problems:
            found = ", ".join(f"{kind}: {text}" for kind, text in self._texts())
            raise DataError(f"{where}: {found}", "Mend the data, or leave out --strict.")

    def _texts(self) -> Iterator[tuple[str, str]]:
        for name, text in self.problems.items():
            yield name.rpartition(": ")[0], text

    def counts(self) -> dict[str, int]:
        """All numbers, by type and name."""
        return {
            f"{kind}: {name}": value
            for kinds in (self.nodes, self.edges)
            for kind, counts in kinds.items()
            for name, value in counts.items()
        }


def has_types(source: object) -> bool:
    """Whether an input of `prepare` is a typed graph: a recipe with lists of tables, or a folder.

    Parameters
    ----------
    source
        As of `prepare`.

    Returns
    -------
    bool
        True for a recipe with [[nodes]], a raw folder of OGB with relations, and a GraphBolt folder
        with several types.
    """
    if not isinstance(source, Path | str):
        return False
    source = Path(source)
    if source.suffix == ".toml":
        return is_typed(source)
    return (source / "raw" / "relations").is_dir() or read_graphbolt(source) is not None


def prepare_typed(  # noqa: PLR0913 - each argument is an option of the verb
    source: Path,
    out: Path,
    options: Options,
    *,
    root: Path | None = None,
    split_name: str | None = None,
    strict: bool = False,
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TypedReport:
    """Turn a typed graph into a data set, within a memory budget; input files are only read.

    Parameters
    ----------
    source
        A recipe or a folder, of which `has_types` holds.
    out
        Folder to make.
    options
        As of `prepare`; each holds over the recipe's where it is not at its default.
        `undirected` keeps the edges between one type's nodes in both directions, and adds an edge
        type of the reverse edges, ``rev_`` and the relation, to each edge type between two.
    root
        Folder in which the files of a recipe are; the recipe's own by default.
    split_name
        Of an OGB folder with several splits.
    strict
        Refuse data with problems.
    memory
        Bytes of host memory.
    overwrite
        Replace a data set that is there already.
    progress
        Called with (stage, done, total).

    Returns
    -------
    TypedReport
        What was found and done.

    Raises
    ------
    UsageError
        The recipe is wrong.
    DataError
        The input is wrong; the message names the file and place.
    ResourceError
        Memory or disk space does not suffice, or another process writes `out`.
    """
    ledger, report = Ledger(Budget.parse(memory)), TypedReport()
    recipe = TypedRecipe.load(source) if source.suffix == ".toml" else None
    if recipe is not None:
        options = recipe.options.overridden(options)
    with (
        DatasetWriter(out, overwrite=overwrite, ledger=ledger) as writer,
        Workspace(writer.partial.absolute(), ledger) as workspace,
    ):
        if recipe is not None:
            folder = source.absolute().parent if root is None else root
            found = read_recipe(recipe, folder, workspace, progress)
        elif (source / "raw" / "relations").is_dir():
            found = read_ogb(source, split_name, workspace, progress)
        else:
            graphbolt = read_graphbolt(source)
            assert graphbolt is not None  # it has types
            found = graphbolt.read(workspace, progress)
        report.notes += found.notes
        for name in sorted(found.nodes):
            _write_nodes(name, found, options, workspace, writer, report, progress)
        counts = {name: len(nodes) for name, nodes in found.nodes.items()}
        for edge_type, (edges, reverse) in sorted(found.edges.items()):
            # rows of a matrix as wide as it is long, of which those of the destinations are written
            stream = edges.load(max(counts[edge_type[0]], counts[edge_type[2]]))
            unknown = found.unknown_ends.get(edge_type, 0)
            for way in directions(edge_type, reverse, options):
                name, of_type = "-".join(way.edge_type), Report(unknown_ends=unknown)
                write = functools.partial(
                    _write_edges, way, stream, counts, options, workspace, writer, of_type, progress
                )
                writer.stage(name, write)
                kept = options.duplicates == "keep"
                report.take(name, "edges", of_type, duplicates_kept=kept)
        if strict:
            report.refuse(source.name)
        writer.report(report.counts())
    return report


def _write_nodes(
    name: str,
    found: TypedSource,
    options: Options,
    workspace: Workspace,
    writer: DatasetWriter,
    total: TypedReport,
    progress: Progress | None,
) -> None:
    """Write all that is known of the nodes of a type."""
    nodes, place = found.nodes[name], _Place(writer, f"nodes/{name}")
    count = len(nodes)
    report = Report(num_nodes=count)
    for where, rows in (("features", nodes.features), ("labels", nodes.labels)):
        if rows is not None and len(rows) != count:
            raise DataError(
                f"{rows.where}: {where} of {len(rows)} nodes, {count} of type {name!r}",
                "Give one row to every node, and the true number of nodes.",
            )

    def write_rows() -> None:
        if nodes.features is not None:
            write_features(
                nodes.features, place, workspace, options.nonfinite, report, progress,
                wanted=options.dtype,
            )  # fmt: skip

    def write_others() -> None:
        for key, array in nodes.arrays.items():
            array.write(place.array(f"nodes/node/{key}", array.shape, array.dtype.name))
        known = None if nodes.labels is None else labels_of(nodes.labels, workspace)
        if known is not None or nodes.splits:
            splits = Splits(count, workspace)
            if known is not None:
                write_labels(known, splits, place, report)
            if options.split is None and nodes.splits:
                splits.read(nodes.splits)
            else:
                splits.draw(Shares(options.split or DEFAULT_SHARES), known, options.seed)
            splits.write(
                place, has_labels=known is not None, unlabeled=options.unlabeled, report=report
            )
        writer.nodes(name, count, num_classes=report.num_classes)

    writer.stage(f"{name}: features", write_rows)
    writer.stage(name, write_others)
    total.take(name, "nodes", report, duplicates_kept=True)


class Direction(NamedTuple):
    """An edge type that edges of an input become, and how."""

    edge_type: EdgeType
    turned: bool
    """Whether the edges are turned round."""
    undirected: bool
    """Whether the reverse of each is added to them."""


def directions(edge_type: EdgeType, reverse: str | None, options: Options) -> Iterator[Direction]:
    """Edge types that the edges of a type of the input become.

    Parameters
    ----------
    edge_type
        Of the input.
    reverse
        Relation under which they are kept in the other direction too.
    options
        Of which `undirected` asks for the other direction.

    Yields
    ------
    Direction
        The type itself first.
    """
    src, relation, dst = edge_type
    both = options.undirected and src == dst and reverse is None
    yield Direction(edge_type, turned=False, undirected=both)
    if reverse is None and options.undirected and not both:
        reverse = f"rev_{relation}"
    if reverse is not None:
        yield Direction((dst, reverse, src), turned=True, undirected=False)


def _write_edges(
    way: Direction,
    edges: EdgeStream,
    node_counts: dict[str, int],
    options: Options,
    workspace: Workspace,
    writer: DatasetWriter,
    report: Report,
    progress: Progress | None,
) -> None:
    """Write the edges of a type."""
    src, _, dst = way.edge_type
    num_src, num_dst = node_counts[src], node_counts[dst]
    one_type = src == dst
    ends = (num_dst, num_src) if way.turned else (num_src, num_dst)
    names = (dst, src) if way.turned else (src, dst)
    stream = _Checked(edges, ends, names, turned=way.turned)
    place = _Place(
        writer,
        "edges/" + "-".join(way.edge_type),
        edge_type=way.edge_type,
        num_rows=num_dst + 1,
        loops=one_type,
    )
    rules = EdgeRules(
        undirected=way.undirected,
        self_loops=options.self_loops if one_type else "keep",
        duplicates=options.duplicates,
    )
    CsrBuilder(stream, max(ends), rules, workspace, progress).write(place, report)
    report.isolated = 0  # of one edge type it says little
    if not one_type:
        report.self_loops = 0


class _Checked:
    """Edges whose ids are held against the nodes of their types; turned round where wanted."""

    def __init__(
        self, edges: EdgeStream, ends: tuple[int, int], names: tuple[str, str], *, turned: bool
    ) -> None:
        self.where, self.num_edges = edges.where, edges.num_edges
        self._edges, self._ends, self._names, self._turned = edges, ends, names, turned

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces."""
        done = 0
        for piece in self._edges.pieces():
            span = piece.num_edges * piece.step
            starts = (piece.src_at, piece.dst_at)
            for at, count, name in zip(starts, self._ends, self._names, strict=True):
                self._check(piece.ids[at : at + span : piece.step], count, name, done)
            done += piece.num_edges
            if self._turned:
                piece = piece._replace(src_at=piece.dst_at, dst_at=piece.src_at)  # noqa: PLW2901
            yield piece

    def _check(self, ids: NDArray[Any], count: int, name: str, done: int) -> None:
        if len(ids) and not 0 <= ids.min() <= ids.max() < count:
            at = int(np.flatnonzero((ids < 0) | (ids >= count))[0])
            where = f"{self.where}: edge {done + at}: {name}"
            raise outside(where, int(ids[at]), count)


class _Place(DatasetWriter):
    """A writer of a graph without types that puts what it is given where one type is.

    Parameters
    ----------
    writer
        Of the data set.
    folder
        Of the type.
    edge_type
        Of edges.
    num_rows
        Entries of `indptr` that are written, the first ones.
    loops
        Whether nodes may have edges to themselves.
    """

    def __init__(
        self,
        writer: DatasetWriter,
        folder: str,
        *,
        edge_type: EdgeType | None = None,
        num_rows: int = 0,
        loops: bool = True,
    ) -> None:
        self._writer, self._folder, self._edge_type = writer, folder, edge_type
        self._num_rows, self._loops = num_rows, loops

    def array(self, name: str, shape: tuple[int | None, ...], dtype: str) -> Any:
        """Begin an array of the type."""
        last = name.rpartition("/")[2]
        if self._edge_type is not None and last == "indptr":
            rows = self._writer.array(f"{self._folder}/{last}", (self._num_rows,), dtype)
            return _First(rows, self._num_rows)
        if last == "loops" and not self._loops:
            return _First(None, 0)
        return self._writer.array(f"{self._folder}/{last}", shape, dtype)

    def edges(self, edge_type: EdgeType, count: int) -> None:
        """Declare the edges of the type."""
        self._writer.edges(self._edge_type or edge_type, count)


class _First:
    """The first rows of an array, as many as it is declared to have; or none of it."""

    def __init__(self, writer: Any, count: int) -> None:
        self._writer, self._count = writer, count

    def append(self, rows: NDArray[Any]) -> None:
        if self._writer is not None:
            self._writer.append(rows[: self._count - self._writer.num_rows])


def refuse_for_types(**given: object) -> None:
    """Refuse options that a typed input has no use for.

    Parameters
    ----------
    **given
        Values by option; those that are not None were given.

    Raises
    ------
    UsageError
        One was given.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning for a typed graph: of which type?",
                "Leave it out; the files of each type are named in a recipe.",
            )
