"""What a preparation is going to take, stage by stage, from counts: nothing is written.

Memory is what gnnx's buffers take of the HOST tier at most; the interpreter and its libraries come
on top, and so does what is read into memory as a whole. Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gnnx import threads
from gnnx.errors import UsageError
from gnnx.memory import Budget, Tier
from gnnx.prepare.buckets import layout
from gnnx.prepare.counting import Counts, count, count_rows
from gnnx.prepare.typed import has_types

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rates of one core of a 2-core cloud machine, measured by benchmarks/forecast.py on graphs of
# 5 to 20 million edges; a forecast of time is good to a factor of two elsewhere.
_TEXT_BYTES_S = 90e6
_EDGES_S = 12e6
_SORTED_EDGES_S = 30e6
_BUCKETS_S = 30e6
_NUMBERED_EDGES_S = 2e6
_VALUES_S = 4e6
_FEATURE_BYTES_S = 400e6

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
    """None where ids are numbered anew: their number is known at the end."""
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
    memory: str | int | None = None,
) -> Forecast:
    """Forecast memory, disk and time of `prepare` from headers and a sample of text.

    Parameters
    ----------
    source
        As of `prepare`: an edge list, arrays, Matrix Market or an OGB, IGB or MAG240M folder.
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
    if has_types(source):
        raise UsageError(
            f"{Path(source).name}: a typed graph, which --dry-run cannot forecast",
            "Leave out --dry-run.",
        )
    counts = count(Path(source))
    if features is not None:
        counts.features, num_bytes, exact = count_rows(Path(features))
        counts.text_bytes, counts.exact = counts.text_bytes + num_bytes, counts.exact and exact
    rows = None if counts.features is None else counts.features[0]
    if labels is not None:
        (rows, *_), num_bytes, exact = count_rows(Path(labels))
        counts.text_bytes, counts.exact = counts.text_bytes + num_bytes, counts.exact and exact
    counts.num_nodes = counts.num_nodes or rows or num_nodes
    host = Budget.parse(memory).limit(Tier.HOST)
    stages = [*_stages(counts, host, mirror=undirected, loops=self_loops == "add")]
    given = {"weight": edge_weight, "attr": edge_attr, "time": edge_time}
    sizes = [_value_bytes(name, path) for name, path in given.items() if path is not None]
    if sizes:
        entries = counts.num_edges * (1 + undirected)
        entries += (counts.num_nodes or 0) * (self_loops == "add")
        stages.append(_value_stage(sizes, entries, counts.num_nodes or 0, host, stages[-1]))
    return Forecast(counts.num_nodes, counts.num_edges, counts.exact, tuple(stages))


def _stages(counts: Counts, host: int | None, *, mirror: bool, loops: bool) -> Iterator[Stage]:
    budget = 1 << 62 if host is None else host
    piece, window = _units(budget)
    num_edges = counts.num_edges
    # ids that are numbered anew are int64 in both scratch files
    pair_bytes = 16 if counts.num_nodes is None or counts.num_nodes > 2**31 else 8
    if counts.text_bytes or counts.unpacked_bytes:
        scratch = num_edges * pair_bytes if counts.from_text else counts.unpacked_bytes
        if counts.features and counts.from_text:
            scratch += 4 * counts.features[0] * counts.features[1] * (counts.text_bytes > 0)
        taken = 2 * piece + window
        yield Stage("reading", taken, scratch, 0, counts.text_bytes / _TEXT_BYTES_S)
    num_nodes = counts.num_nodes
    if num_nodes is None:
        num_nodes = 2 * num_edges  # at most
        taken = budget // 2 + 2 * piece + min(budget // 16, 256 * _SLOT_BYTES)
        seconds = num_edges / _NUMBERED_EDGES_S
        yield Stage("numbering", taken, _NUMBERED_BYTES * num_edges, 0, seconds)
    if counts.features is not None:
        size = counts.features[0] * counts.features[1] * counts.features[2]
        taken = window + 2 * min(piece, size)
        yield Stage("features", taken, 0, size + _HEADER_BYTES, size / _FEATURE_BYTES_S)
    yield Stage("splits", 3 * window + num_nodes, 0, 8 * num_nodes + 3 * _HEADER_BYTES, 0.0)
    yield from _edge_stages(num_edges, num_nodes, budget, piece, window, mirror, loops)


def _value_bytes(name: str, given: Path | str) -> int:
    """Bytes of a stored value of an edge."""
    path = Path(given)
    if name != "attr":
        return 8 if name == "time" else 4
    if path.exists():
        (_, width, size), _, _ = count_rows(path)
        return width * size
    return 4 * len(str(given).split(","))


def _value_stage(
    sizes: list[int], entries: int, num_nodes: int, host: int | None, edges: Stage
) -> Stage:
    budget = 1 << 62 if host is None else host
    piece, window = _units(budget)
    held = (len(sizes) + 1) * window + 8 * num_nodes
    streams = (4 + 4 * len(sizes)) * piece
    room = max(1 << 16, budget - held - streams) // 2
    taken = min(entries * (32 + 2 * sum(sizes)), room) + 3 * piece
    written = entries * sum(sizes) + 4 * num_nodes * (4 in sizes)
    passes = max(1, entries * (32 + 2 * sum(sizes)) // room)
    return Stage("values", held + taken, 0, written, edges.seconds + passes * entries / _VALUES_S)


def _units(budget: int) -> tuple[int, int]:
    """Bytes of a piece of a stream, and of the windows of an array that is being written."""
    piece = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, budget // 32))
    return piece, 2 * min(_LARGEST_WINDOW, max(_SMALLEST_WINDOW, budget // 64))


def _edge_stages(
    num_edges: int,
    num_nodes: int,
    budget: int,
    piece: int,
    window: int,
    mirror: bool,
    loops: bool,
) -> Iterator[Stage]:
    index_bytes = 4 if num_nodes <= 2**31 else 8
    entries = num_edges * (1 + mirror) + num_nodes * loops
    held = num_nodes // 4 + 2 * window  # two bitmaps; two arrays
    written = entries * index_bytes + 8 * (num_nodes + 1) + 2 * _HEADER_BYTES
    stream = _STREAM_PIECES * piece
    whole = entries * index_bytes + 8 * num_nodes
    if whole + stream <= budget - held:
        taken = held + whole + stream
        yield Stage("edges", taken, 0, written, entries / _EDGES_S)
        return
    workers = threads.num_threads()
    _, num_buckets, block = layout(num_nodes, entries, index_bytes, budget - held)
    slots = workers * (num_buckets * block * 2 * index_bytes + num_nodes // 4)
    scratch = 2 * index_bytes * num_edges * (1 + mirror)
    yield Stage("sorting edges", held + slots + 2 * piece, scratch, 0, entries / _SORTED_EDGES_S)
    # buckets are built side by side where each of them finds its share
    many = (budget - held) // (workers + 1) - stream >= _BUCKET_BYTES + piece
    # the room for their streams is held for a moment each, by one of them or by all
    streams = (1 + workers) * stream // 2 if many else stream
    taken = streams + (1 + workers * many) * _BUCKET_BYTES
    yield Stage("edges", min(budget, held + taken), 0, written, entries / _BUCKETS_S)
