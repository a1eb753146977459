"""What a preparation is going to take, stage by stage, from counts: nothing is written.

Memory is what gnnx's buffers take of the HOST tier at most; the interpreter and its libraries come
on top, and so does what is read into memory as a whole. Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gnnx import threads
from gnnx.memory import Budget, Tier
from gnnx.prepare.buckets import layout
from gnnx.prepare.counting import (
    EdgeCounts,
    NodeCounts,
    Reading,
    count,
    count_rows,
    pair_bytes,
    sample,
)  # fmt: skip
from gnnx.prepare.csr import WHOLE_BYTES
from gnnx.prepare.layouts import csv_dataset
from gnnx.prepare.matrix_market import is_matrix
from gnnx.prepare.recipe import Options, Recipe
from gnnx.prepare.recipe_counts import count_recipe
from gnnx.prepare.sources import check_value
from gnnx.prepare.text import is_text
from gnnx.prepare.typed import directions, has_types, refuse_for_types
from gnnx.prepare.typed_counts import count_typed
from gnnx.store.manifest import disk_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gnnx.prepare.nodes import FeatureDtype
    from gnnx.prepare.typed_counts import TypedCounts

# Rates of one core of a 2-core cloud machine, measured by benchmarks/forecast.py on graphs of
# 5 to 20 million edges; a forecast of time is good to a factor of two elsewhere.
_TEXT_BYTES_S = 90e6
_EDGES_S = 12e6
_SORTED_EDGES_S = 30e6
_BUCKETS_S = 30e6
_NUMBERED_EDGES_S = 2e6
_VALUES_S = 4e6
_FEATURE_BYTES_S = 800e6  # read and written
_TABLE_BYTES_S = 60e6
_TABLE_ROWS_S = 1e6

_LARGEST_PIECE, _SMALLEST_PIECE = 8 << 20, 64 << 10
_LARGEST_WINDOW, _SMALLEST_WINDOW = 8 << 20, 256 << 10
_BUCKET_BYTES = 4 << 20
_SLOT_BYTES = 64 << 10  # of one of 256 buckets of keys
_NUMBERED_BYTES = 42  # of an edge that is numbered anew: two records, their buckets, ids twice
_STREAM_PIECES = 6  # buffers of the stream of edges, beside its rows
_HEADER_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of a preparation."""

    name: str
    memory_bytes: int
    """Most of the HOST tier at once."""
    scratch_bytes: int
    """Scratch files that are there at its end, beside what has been written."""
    written_bytes: int
    """Of the data set."""
    seconds: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a preparation is going to take."""

    num_nodes: int | None
    """None where no table and no option says it: their number is known at the end."""
    num_edges: int
    """Of the input."""
    exact: bool
    """Whether the counts are the input's own, not estimated from a sample of its text."""
    stages: tuple[Stage, ...]

    @property
    def memory_bytes(self) -> int:
        """Peak of the HOST tier."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def written_bytes(self) -> int:
        """Size of the data set."""
        return sum(stage.written_bytes for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Peak of the disk: the data set, and all scratch files, which go at the end."""
        return self.written_bytes + sum(stage.scratch_bytes for stage in self.stages)

    @property
    def seconds(self) -> float:
        """All stages."""
        return sum(stage.seconds for stage in self.stages)


def forecast(  # noqa: PLR0913 - the options of `prepare` that change what it takes
    source: Path | str,
    *,
    features: Path | str | None = None,
    labels: Path | str | None = None,
    num_nodes: int | None = None,
    edge_weight: Path | str | None = None,
    edge_attr: Path | str | None = None,
    edge_time: Path | str | None = None,
    undirected: bool = False,
    self_loops: Literal["keep", "drop", "add"] = "keep",
    dtype: FeatureDtype = "source",
    root: Path | str | None = None,
    memory: str | int | None = None,
) -> Forecast:
    """Forecast memory, disk and time of `prepare` from headers and a sample of text.

    Parameters
    ----------
    source
        As of `prepare`: a recipe, an edge list, arrays, Matrix Market, an OGB, IGB, MAG240M or
        CSVDataset folder, or a typed graph.
    features
        As of `prepare`.
    labels
        As of `prepare`.
    num_nodes
        As of `prepare`.
    edge_weight
        As of `prepare`.
    edge_attr
        As of `prepare`.
    edge_time
        As of `prepare`.
    undirected
        As of `prepare`; every reverse is taken to be absent.
    self_loops
        As of `prepare`.
    dtype
        As of `prepare`.
    root
        As of `prepare`.
    memory
        As of `prepare`.

    Returns
    -------
    Forecast
        By stage.

    Raises
    ------
    DataError
        A file cannot be read.
    UsageError
        An input whose counts are not known before it has been read.
    """
    source, room = Path(source), _Room.of(memory)
    folder = None if root is None else Path(root)
    given = Options(undirected=undirected, self_loops=self_loops, dtype=dtype)
    if has_types(source):
        refuse_for_types(
            features=features, labels=labels, num_nodes=num_nodes,
            edge_weight=edge_weight, edge_attr=edge_attr, edge_time=edge_time,
        )  # fmt: skip
        typed = count_typed(source, folder)
        return _typed(typed, typed.options.overridden(given), room)
    rows = [Path(path) for path in (features, labels) if path is not None]
    graph = _Graph.of_recipe(source, folder) or _Graph.of_input(source, rows, num_nodes)
    if features is not None:
        graph.nodes.take_features(Path(features))
    if labels is not None:
        graph.nodes.take_labels(Path(labels))
    values = {"weight": edge_weight, "attr": edge_attr, "time": edge_time}
    for name, value in values.items():
        if value is not None:
            _take_value(graph.edges, name, str(value), source)
    return Forecast(
        graph.nodes.count if graph.is_counted else None,
        graph.edges.count,
        graph.nodes.reading.exact and graph.edges.reading.exact,
        tuple(_stages(graph, graph.options.overridden(given), room)),
    )


@dataclasses.dataclass
class _Graph:
    """What an input without types holds."""

    nodes: NodeCounts
    edges: EdgeCounts
    is_counted: bool = True
    """Whether a table or an option says how many nodes there are."""
    is_numbered: bool = False
    """Whether the ids of edges are taken for keys."""
    options: Options = dataclasses.field(default_factory=Options)
    """Of a recipe."""

    @classmethod
    def of_recipe(cls, source: Path, root: Path | None) -> _Graph | None:
        """Count the tables of a recipe, or of a folder that can be described as one."""
        if source.suffix == ".toml":
            recipe: Recipe | None = Recipe.load(source)
            root = source.absolute().parent if root is None else root
        else:
            recipe, root = csv_dataset(source), source
        if recipe is None:
            return None
        nodes, edges = count_recipe(recipe, root)
        return cls(nodes, edges, recipe.nodes is not None, options=recipe.options)

    @classmethod
    def of_input(cls, source: Path, rows: list[Path], num_nodes: int | None) -> _Graph:
        """Count an input of another kind; `rows` are files with a row a node."""
        counts, exact = count(source), True
        known = counts.num_nodes
        if known is None and rows:
            (known, *_), _, exact = count_rows(rows[0])
        known = num_nodes if known is None else known
        scratch = counts.scratch_bytes
        scratch += counts.num_edges * pair_bytes(known) * counts.from_text
        nodes = NodeCounts(
            2 * counts.num_edges if known is None else known,  # at most
            counts.features,
            has_splits=True,  # they are drawn where there are none
            reading=Reading(exact=exact),
        )
        text = Reading(text_bytes=counts.text_bytes, scratch_bytes=scratch, exact=counts.exact)
        edges = EdgeCounts(counts.num_edges, text)
        return cls(nodes, edges, known is not None, is_numbered=known is None)


def _take_value(edges: EdgeCounts, name: str, given: str, source: Path) -> None:
    """Count values that an option names: a file, or something of the source."""
    check_value(source, given, name)
    path, width, size = Path(given), 1, 8 if name == "time" else 4
    if path.exists():
        (_, width, stored), text_bytes, _ = count_rows(path)
        size, columns = stored if name == "attr" else size, width
    elif is_matrix(source) or is_text(source):  # which is read once more
        lines, width = sample(source), len(given.split(","))
        text_bytes, columns = lines.num_bytes, 1 if is_matrix(source) else lines.columns
    else:
        text_bytes = columns = 0
    edges.values[name] = size * width
    edges.reading += Reading(
        text_bytes=text_bytes, scratch_bytes=8 * columns * edges.count * (text_bytes > 0)
    )


@dataclasses.dataclass(frozen=True)
class _Room:
    """What a budget of HOST makes of buffers."""

    budget: int
    piece: int
    """Bytes of a piece of a stream."""
    window: int
    """Bytes of the windows of an array that is being written."""

    @classmethod
    def of(cls, memory: str | int | None) -> _Room:
        host = Budget.parse(memory).limit(Tier.HOST)
        budget = 1 << 62 if host is None else host
        piece = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, budget // 32))
        window = min(_LARGEST_WINDOW, max(_SMALLEST_WINDOW, budget // 64))
        return cls(budget, piece, 2 * window)


def _stages(graph: _Graph, options: Options, room: _Room) -> Iterator[Stage]:
    """Stages of a graph without types."""
    nodes, edges = graph.nodes, graph.edges
    yield from _reading_stages("", nodes.reading + edges.reading, room)
    if graph.is_numbered:
        taken = room.budget // 2 + _looked_up_bytes(room)
        seconds = edges.count / _NUMBERED_EDGES_S
        yield Stage("numbering", taken, _NUMBERED_BYTES * edges.count, 0, seconds)
    yield from _node_stages("", nodes, room, options.dtype)
    mirror, loops = options.undirected, options.self_loops == "add"
    seconds = 0.0
    for stage in _edge_stages("", edges.count, nodes.count, nodes.count, room, mirror, loops):
        yield stage
        seconds = stage.seconds
    if edges.values:
        entries = edges.count * (1 + mirror) + nodes.count * loops
        yield _value_stage(edges.values, entries, nodes.count, room, seconds)


def _typed(typed: TypedCounts, options: Options, room: _Room) -> Forecast:
    """Stages of a typed graph, type by type, in the order of the preparation."""
    readings = [nodes.reading for nodes in typed.nodes.values()]
    readings += [edges.reading for edges, _ in typed.edges.values()]
    stages: list[Stage] = []
    for name, nodes in typed.nodes.items():
        stages += _reading_stages(f"{name}: ", nodes.reading, room)
    for name, nodes in sorted(typed.nodes.items()):
        stages += _node_stages(f"{name}: ", nodes, room, options.dtype)
    for edge_type, (edges, reverse) in sorted(typed.edges.items()):
        stages += _reading_stages(f"{'-'.join(edge_type)}: ", edges.reading, room)
        for way in directions(edge_type, reverse, options):
            src, _, dst = way.edge_type
            num_rows = typed.nodes[dst].count
            num_nodes = max(typed.nodes[src].count, num_rows)
            loops = src == dst and options.self_loops == "add"
            name = f"{'-'.join(way.edge_type)}: "
            stages += _edge_stages(
                name, edges.count, num_nodes, num_rows, room, way.undirected, loops
            )
    return Forecast(
        sum(nodes.count for nodes in typed.nodes.values()),
        sum(edges.count for edges, _ in typed.edges.values()),
        all(reading.exact for reading in readings),
        tuple(stages),
    )


def _reading_stages(name: str, read: Reading, room: _Room) -> Iterator[Stage]:
    """Text is parsed, and tables are read by DuckDB, which gets half of the memory."""
    if not (read.scratch_bytes or read.text_bytes):
        return
    taken = room.budget // 2 if read.table_bytes else 2 * room.piece + room.window
    taken += _looked_up_bytes(room) if read.keys else 0
    seconds = read.text_bytes / _TEXT_BYTES_S
    seconds += read.table_bytes / _TABLE_BYTES_S + read.table_rows / _TABLE_ROWS_S
    yield Stage(f"{name}reading", taken + read.host_bytes, read.scratch_bytes, 0, seconds)


def _looked_up_bytes(room: _Room) -> int:
    """Count what looking keys up takes beside DuckDB's half: buckets, and what is read of them."""
    return 2 * room.piece + min(room.budget // 16, 256 * _SLOT_BYTES)


def _node_stages(name: str, nodes: NodeCounts, room: _Room, dtype: FeatureDtype) -> Iterator[Stage]:
    """Features, and what else there is of the nodes."""
    num_nodes, piece, window = nodes.count, room.piece, room.window
    if nodes.features is not None:
        rows, width, native = nodes.features
        element = native if dtype == "source" else disk_dtype(dtype).itemsize
        size, read, taken = rows * width * element, rows * width * native, window
        if dtype == "int8":  # by way of float32, in two passes
            taken += min(piece, read) + min(piece, 4 * rows * width) + min(piece // 4, size)
            seconds = (2 * read + size) / _FEATURE_BYTES_S
            size += _HEADER_BYTES + 4 * width
        else:
            taken += min(piece, read) + min(piece, size)
            seconds = (read + size) / _FEATURE_BYTES_S
        yield Stage(f"{name}features", taken, 0, size + _HEADER_BYTES, seconds)
    taken = written = 0
    sizes = [*nodes.arrays]
    sizes += [nodes.label_bytes * num_nodes] * bool(nodes.label_bytes)
    if nodes.label_bytes or nodes.has_splits:
        sizes += [8 * num_nodes, 0, 0]  # a node is in one split, most of them in the first
        taken = num_nodes
    if sizes:
        taken += len(sizes) * window + min(piece, 2 * nodes.label_bytes * num_nodes)
        written = sum(sizes) + len(sizes) * _HEADER_BYTES
        yield Stage(f"{name}splits", taken, 0, written, 0.0)


def _value_stage(
    sizes: dict[str, int], entries: int, num_nodes: int, room: _Room, seconds: float
) -> Stage:
    """Values of edges; `seconds` is what reading all edges once takes."""
    entry = sum(sizes.values())
    held = (len(sizes) + 1) * room.window + 8 * num_nodes
    streams = (4 + 4 * len(sizes)) * room.piece
    left = max(1 << 16, room.budget - held - streams) // 2
    taken = min(entries * (32 + 2 * entry), left) + 3 * room.piece
    written = entries * entry + 4 * num_nodes * ("weight" in sizes)
    passes = max(1, entries * (32 + 2 * entry) // left)
    return Stage("values", held + taken, 0, written, seconds + passes * entries / _VALUES_S)


def _edge_stages(
    name: str,
    num_edges: int,
    num_nodes: int,
    num_rows: int,
    room: _Room,
    mirror: bool,
    loops: bool,
) -> Iterator[Stage]:
    """Rows of in-edges, of which the first ones are stored where ends are of two types."""
    index_bytes = 4 if num_nodes <= 2**31 else 8
    entries = num_edges * (1 + mirror) + num_nodes * loops
    held = num_nodes // 4 + 2 * room.window  # two bitmaps; two arrays
    written = entries * index_bytes + 8 * (num_rows + 1) + 2 * _HEADER_BYTES
    stream = _STREAM_PIECES * room.piece
    whole = entries * index_bytes + 8 * num_nodes
    if whole <= min(room.budget - held - stream, WHOLE_BYTES):
        taken = held + whole + stream
        yield Stage(f"{name}edges", taken, 0, written, entries / _EDGES_S)
        return
    workers = threads.num_threads()
    _, num_buckets, block = layout(num_nodes, entries, index_bytes, room.budget - held)
    slots = workers * (num_buckets * block * 2 * index_bytes + num_nodes // 4)
    scratch, seconds = 2 * index_bytes * num_edges * (1 + mirror), entries / _SORTED_EDGES_S
    yield Stage(f"{name}sorting edges", held + slots + 2 * room.piece, scratch, 0, seconds)
    # buckets are built side by side where each of them finds its share
    many = (room.budget - held) // (workers + 2) - stream >= _BUCKET_BYTES + room.piece
    # the room for their streams is held for a moment each, by one of them or by all
    streams = (1 + workers) * stream // 2 if many else stream
    taken = streams + (1 + workers * many) * _BUCKET_BYTES
    yield Stage(f"{name}edges", min(room.budget, held + taken), 0, written, entries / _BUCKETS_S)
