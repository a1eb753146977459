"""From raw input to a data set: open, agree on N, features, labels, splits, edges.

Letters: N nodes.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.interop import InMemoryGraph
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.csr import WHOLE_BYTES, CsrBuilder, EdgeRules
from gnnx.prepare.inputs import Inputs
from gnnx.prepare.keyed import renumber
from gnnx.prepare.nodes import FeatureDtype, labels_of, stored_dtype, write_features, write_labels
from gnnx.prepare.origin import origin_of
from gnnx.prepare.recipe import Options, Recipe
from gnnx.prepare.report import Report
from gnnx.prepare.sources import Reader
from gnnx.prepare.splits import DEFAULT_SHARES, NAMES, Shares, Splits
from gnnx.prepare.text import TextFormat
from gnnx.prepare.typed import TypedReport, has_types, prepare_typed, refuse_for_types
from gnnx.prepare.values import FOLDER as EDGES
from gnnx.prepare.values import NAMES as VALUES
from gnnx.prepare.values import write_edge_values
from gnnx.store import DatasetWriter, enough_named
from gnnx.store.manifest import disk_dtype

if TYPE_CHECKING:
    from gnnx.prepare.edges import EdgeStream, Layout
    from gnnx.prepare.nodes import Labels, MultiLabels, Nonfinite
    from gnnx.prepare.sources import Source
    from gnnx.threads import Progress

_CHOICES = {
    "self_loops": ("keep", "drop", "add"),
    "duplicates": ("keep", "drop", "sum"),
    "nonfinite": ("refuse", "keep", "zero"),
    "unlabeled": ("refuse", "ignore"),
    "bad_lines": ("refuse", "drop"),
    "dtype": ("source", "float32", "float16", "bfloat16", "int8"),
}


@enough_named()
def prepare(  # noqa: PLR0913 - each argument is an option of the verb
    source: Path | str | InMemoryGraph,
    out: Path | str,
    *,
    features: Path | str | None = None,
    labels: Path | str | None = None,
    train: Path | str | None = None,
    val: Path | str | None = None,
    test: Path | str | None = None,
    num_nodes: int | None = None,
    edge_weight: Path | str | None = None,
    edge_attr: Path | str | None = None,
    edge_time: Path | str | None = None,
    undirected: bool = False,
    self_loops: Literal["keep", "drop", "add"] = "keep",
    duplicates: Literal["keep", "drop", "sum"] = "keep",
    split: str | None = None,
    dtype: FeatureDtype = "source",
    nonfinite: Nonfinite = "refuse",
    unlabeled: Literal["refuse", "ignore"] = "refuse",
    delimiter: str | None = None,
    header: bool | None = None,
    comment: str = "#",
    layout: Layout | None = None,
    root: Path | str | None = None,
    remap: bool | None = None,
    pickles: bool = False,
    bad_lines: Literal["refuse", "drop"] = "refuse",
    strict: bool = False,
    seed: int = 0,
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report | TypedReport:
    """Turn raw input into a data set, within a memory budget; input files are only read.

    The bytes of the data set depend on the input and the options, not on the memory.

    Parameters
    ----------
    source
        A recipe (.toml), an edge list (.txt, .csv, .tsv, also with .gz), edges in .npy of shape
        (E, 2) or (2, E), an .npz archive, Matrix Market, another file or folder of docs/data.md, or
        a graph in memory from `gnnx.from_pyg` and its like. An edge goes from the first id to the
        second; in a CSR the row is the source. Ids are 0 … N - 1, unless they are remapped. A
        recipe with [[nodes]] and [[edges]], and folders with relations, are typed graphs:
        `undirected` adds an edge type of reverse edges to each between two node types.
    out
        Folder to make.
    features
        Table of one row a node, .npy or text, instead of the input's own.
    labels
        Likewise, one class from 0 on a node, or 0 or 1 for each of several; -1 or NaN is none.
    train
        Ids of the training nodes, or one flag a node in .npy, instead of the input's own splits.
    val
        Likewise, of the validation nodes.
    test
        Likewise, of the test nodes.
    num_nodes
        N, where no table of nodes says it.
    edge_weight
        Weights of the edges: a file with a row an edge, .npy or text; of an archive, the name of an
        array; of Matrix Market, "value"; of an edge list in text, the number of a column, from 0.
    edge_attr
        Features of the edges, likewise; of text several columns, "2,3".
    edge_time
        Times of the edges, likewise, whole numbers.
    undirected
        Add the reverse of each edge, once, where the input lacks it.
    self_loops
        Keep them, drop them, or add one to each node that has none.
    duplicates
        Keep parallel edges, or one of each, with the values of the first or the sum of all.
    split
        Shares of the nodes that have a label, such as "0.6,0.2,0.2" (the default where the input
        has no split), or "per-class:20,30,rest"; of an OGB folder with several splits, a name.
    dtype
        In what features are stored, rounded to the nearest: "float32", "float16", "bfloat16", or
        "int8" with a scale for each column; "source" keeps what they are, float64 as float32.
    nonfinite
        Refuse NaN and infinite features, keep them, or make them zero.
    unlabeled
        Refuse splits with nodes that have no label, or leave those out.
    delimiter
        Of text: one character, " " for runs of blanks; found out by default.
    header
        Whether text begins with a line of names; found out by default.
    comment
        What lines of text begin with that are none.
    layout
        "pairs" for (E, 2) or "rows" for (2, E), where edges have shape (2, 2).
    root
        Folder in which the files of a recipe are; the recipe's own by default.
    remap
        Take the ids of edges for keys, number those that occur from 0 on, ascending, and keep the
        keys. By default this is done where nothing says how many nodes there are.
    pickles
        Read files that are pickles (.pt, Planetoid's ind.*): plain data only, never code.
    bad_lines
        Refuse lines of an edge list that are no edge between two of the N nodes, or drop them.
    strict
        Refuse data with anything that `Report.problems` names.
    seed
        Of the splits that are drawn.
    memory
        Bytes of host memory, such as "512MiB". Default: 80 % of what is free.
    overwrite
        Replace a data set that is there already.
    progress
        Called with (stage, done, total).

    Returns
    -------
    Report or TypedReport
        What was found and done; of a typed graph, by type.

    Raises
    ------
    UsageError
        An option is wrong, or N is not known.
    DataError
        The input is wrong; the message names the file and place.
    ResourceError
        Memory or disk space does not suffice, or another process writes `out`.
    """
    arguments = dict(locals())  # before there are other names
    out = Path(out)
    source = source if isinstance(source, InMemoryGraph) else Path(source)
    given = Options(undirected, self_loops, duplicates, split, nonfinite, unlabeled, seed, dtype)
    if isinstance(source, Path) and has_types(source):
        refuse_for_types(
            features=features,
            labels=labels,
            train=train,
            val=val,
            test=test,
            num_nodes=num_nodes,
            layout=layout,
            remap=remap,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            edge_time=edge_time,
            bad_lines=None if bad_lines == "refuse" else bad_lines,
        )
        _check(dataclasses.asdict(given) | {"bad_lines": bad_lines})
        by_name = _names_a_split(source, split)
        return prepare_typed(
            source,
            out,
            dataclasses.replace(given, split=None) if by_name else given,
            root=None if root is None else Path(root),
            split_name=split if by_name else None,
            strict=strict,
            memory=memory,
            overwrite=overwrite,
            progress=progress,
        )
    origin = origin_of(arguments)
    recipe = _recipe(source)
    options = recipe.options.overridden(given) if recipe else given
    _check(dataclasses.asdict(options) | {"bad_lines": bad_lines})
    by_name = _names_a_split(source, split)
    shares = None if options.split is None or by_name else Shares(options.split)
    form = TextFormat(delimiter, header, comment)
    ledger = Ledger(Budget.parse(memory))
    report = Report()
    with (
        DatasetWriter(out, overwrite=overwrite, ledger=ledger, origin=origin) as writer,
        Workspace(writer.partial.absolute(), ledger) as workspace,
    ):
        reader = Reader(workspace, form, progress, drop_lines=bad_lines == "drop")
        inputs = Inputs(reader, workspace, pickles=pickles, progress=progress)
        found = _opened(inputs, source, recipe, root, layout, split if by_name else None)
        _take_rows(found, reader, features, labels, (train, val, test))
        _take_values(found, reader, source, (edge_weight, edge_attr, edge_time))
        stated = _stated(found, num_nodes)
        if remap or (remap is None and not stated and not found.splits):
            renumber(found, stated, report, workspace, progress)
            stated = found.num_nodes
        report.num_nodes = _agreed_num_nodes(found, stated)
        report.notes += found.notes
        edges = _loaded_edges(found, report.num_nodes)
        _tell_dropped(found, report)
        rules = EdgeRules(options.undirected, options.self_loops, options.duplicates)
        writer.require(_least_bytes(found, edges, rules, options.dtype, report.num_nodes, ledger))

        def write_rows() -> dict[str, Any]:
            if found.features is not None:
                write_features(
                    found.features, writer, workspace, options.nonfinite, report, progress,
                    wanted=options.dtype,
                )  # fmt: skip
            return dataclasses.asdict(report)

        def write_nodes() -> dict[str, Any]:
            known = None if found.labels is None else labels_of(found.labels, workspace)
            _write_nodes(found, known, shares, options, workspace, writer, report)
            return dataclasses.asdict(report)

        def write_edges() -> dict[str, Any]:
            CsrBuilder(edges, report.num_nodes, rules, workspace, progress).write(writer, report)
            return dataclasses.asdict(report)

        def write_values() -> dict[str, Any]:
            for name, array in found.edge_arrays.items():
                array.write(writer.array(f"{EDGES}/{name}", array.shape, array.dtype.name))
            write_edge_values(
                found.values, edges, report.num_nodes, rules, workspace, writer, progress
            )
            return dataclasses.asdict(report)

        for stage, work in (
            ("features", write_rows),
            ("nodes", write_nodes),
            ("edges", write_edges),
            ("values", write_values),
        ):
            vars(report).update(writer.stage(stage, work))
        report.judge(found.edges.where, duplicates_kept=options.duplicates == "keep", strict=strict)
        writer.report(report.counts())
    return report


def _tell_dropped(found: Source, report: Report) -> None:
    """Report what was left out of the edges, and where."""
    report.unknown_ends, report.dropped_lines = found.unknown_ends, found.dropped.count
    for name, places in (
        ("unknown_ends", found.unknown_at),
        ("dropped_lines", found.dropped.first),
    ):
        if places:
            report.examples[name] = places


def _take_rows(
    found: Source,
    reader: Reader,
    features: Path | str | None,
    labels: Path | str | None,
    splits: tuple[Path | str | None, ...],
) -> None:
    """Open the rows of nodes that the options name, in place of the source's own."""
    if features is not None:
        found.features = reader.rows(Path(features), np.float32)
    if labels is not None:
        found.labels = reader.rows(Path(labels), np.float64)
    if any(splits):
        files = zip(NAMES, splits, strict=True)
        found.splits = {name: reader.split(Path(path)) for name, path in files if path}


def _take_values(
    found: Source,
    reader: Reader,
    source: Path | InMemoryGraph,
    given: tuple[Path | str | None, ...],
) -> None:
    """Open the values of edges that the options name."""
    path = Path(source.name) if isinstance(source, InMemoryGraph) else source
    for name, values in zip(VALUES, given, strict=True):
        if values is not None:
            found.values[name] = reader.edge_values(path, str(values), name)
    if found.offered and not found.values:
        found.notes.append(f"values of edges are not kept: give --edge-weight {found.offered}")


def _recipe(source: Path | InMemoryGraph) -> Recipe | None:
    return Recipe.load(source) if isinstance(source, Path) and source.suffix == ".toml" else None


def _opened(
    inputs: Inputs,
    source: Path | InMemoryGraph,
    recipe: Recipe | None,
    root: Path | str | None,
    layout: Layout | None,
    split_name: str | None,
) -> Source:
    if isinstance(source, InMemoryGraph):
        return inputs.in_memory(source)
    if recipe is not None:
        return inputs.recipe(recipe, source.absolute().parent if root is None else Path(root))
    return inputs.open(source, layout, split_name)


def _names_a_split(source: Path | InMemoryGraph, split: str | None) -> bool:
    """Whether `split` is one of the splits of an OGB folder, not shares."""
    return (
        isinstance(source, Path)
        and source.is_dir()
        and split is not None
        and not set(split) & set(",:")
    )


def _write_nodes(
    found: Source,
    labels: Labels | MultiLabels | None,
    shares: Shares | None,
    options: Options,
    workspace: Workspace,
    writer: DatasetWriter,
    report: Report,
) -> None:
    """Write all of the nodes but their features; what it takes goes to the edges after it."""
    for name, array in found.arrays.items():
        array.write(writer.array(f"nodes/node/{name}", array.shape, array.dtype.name))
    splits = Splits(report.num_nodes, workspace)
    if labels is not None:
        write_labels(labels, splits, writer, report)
    writer.nodes("node", report.num_nodes, num_classes=report.num_classes)
    if shares is None and found.splits:
        splits.read(found.splits)
    else:
        splits.draw(shares or Shares(DEFAULT_SHARES), labels, options.seed)
    splits.write(writer, has_labels=labels is not None, unlabeled=options.unlabeled, report=report)


def _stated(found: Source, num_nodes: int | None) -> list[tuple[str, int]]:
    """Who says how many nodes there are, and how many."""
    stated = [*found.num_nodes]
    tables = (found.features, found.labels)
    stated += [(rows.where, len(rows)) for rows in tables if rows is not None]
    if num_nodes is not None:
        if not 0 <= num_nodes < 1 << 63:
            raise UsageError(
                f"{num_nodes} nodes cannot be", "Give --num-nodes 0 or more, below 2^63."
            )
        stated.append(("--num-nodes", num_nodes))
    return stated


def _agreed_num_nodes(found: Source, stated: list[tuple[str, int]]) -> int:
    """N, which every table of nodes and the option have to agree on."""
    if not stated:
        largest = found.edges.largest_id()
        raise UsageError(
            f"{found.edges.where}: the number of nodes is not known; the largest id is {largest}",
            f"Give --num-nodes, {largest + 1} or more, --features, --labels or --remap.",
        )
    (first, count), *others = stated
    for where, other in others:
        if other != count:
            raise DataError(
                f"{first}: {count} nodes, {where}: {other}",
                "Give one row to every node, and the true number of nodes.",
            )
    return count


def _loaded_edges(found: Source, num_nodes: int) -> EdgeStream:
    edges = found.edges.load(num_nodes)
    if found.num_edges is not None and found.num_edges != edges.num_edges:
        raise DataError(
            f"{edges.where}: {edges.num_edges} edges, {found.num_edges} declared",
            "Fetch the files again.",
        )
    return edges


def _least_bytes(
    found: Source, edges: EdgeStream, rules: EdgeRules, dtype: FeatureDtype, num_nodes: int,
    ledger: Ledger,
) -> int:  # fmt: skip
    """Bytes on the disk that are surely needed: arrays, and edges sorted there where they are many.

    Splits, and reverse edges and loops that may have to be added, come on top.
    """
    size = 8 * (num_nodes + 1)
    if found.features is not None:
        width = math.prod(found.features.shape[1:])
        size += num_nodes * width * disk_dtype(stored_dtype(found.features, dtype)).itemsize
    if found.labels is not None:
        size += 8 * num_nodes
    size += sum(math.prod(each.shape) * each.dtype.itemsize for each in found.arrays.values())
    id_bytes = 4 if num_nodes <= 2**31 else 8
    if rules.self_loops != "drop" and rules.duplicates != "drop":
        size += edges.num_edges * id_bytes
    limit = ledger.budget.limit(Tier.HOST)
    if edges.num_edges * id_bytes > (WHOLE_BYTES if limit is None else min(limit, WHOLE_BYTES)):
        size += 2 * edges.num_edges * id_bytes
    return size


def _check(options: dict[str, Any]) -> None:
    """Refuse values that would otherwise be taken for the default."""
    for name, choices in _CHOICES.items():
        value = options[name]
        if value not in choices:
            raise UsageError(
                f"{name} {value!r} is not a choice", f"Choose from {', '.join(choices)}."
            )
