"""How many rows tables hold, and what their columns are, from footers and a sample of the text."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnnx.errors import DataError
from gnnx.prepare.columns import check_tags, named_columns
from gnnx.prepare.counting import (
    EdgeCounts,
    NodeCounts,
    Reading,
    label_bytes,
)  # fmt: skip
from gnnx.prepare.head import SAMPLE_BYTES, head_of
from gnnx.prepare.splits import NAMES
from gnnx.prepare.tables import check_column, delimiter_of, header, kind_of, matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gnnx.prepare.recipe import EdgeTable, NodeTable, Table

_MOST_ROWS = 1 << 16  # of a sample of Parquet
_STORED = {"weight": 4, "attr": 4, "time": 8, "relation": 4}
"""Bytes of a value of an edge that comes from a column."""


@dataclasses.dataclass(frozen=True)
class TableCounts:
    """What the files of a table hold."""

    num_rows: int
    num_bytes: int
    """Of the files."""
    exact: bool
    """Whether the rows were counted, not estimated."""
    sample: pa.Table
    """The first rows; fields of text are strings, empty ones null."""

    def text_bytes(self, name: str) -> float:
        """Mean bytes of a cell as text."""
        cells = self.sample[name].cast(pa.string())
        return float(pc.mean(pc.binary_length(cells)).as_py() or 0)

    def is_integer(self, name: str) -> bool:
        """Whether a column is of whole numbers; text is not, whatever it says."""
        return bool(pa.types.is_integer(self.sample.schema.field(name).type))

    def has_names(self, name: str) -> bool:
        """Whether the classes of a column are names, not numbers."""
        kind = self.sample.schema.field(name).type
        return not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not all(
            map(_is_number, self.sample[name].drop_null().to_pylist())
        )

    def width(self, name: str, separator: str | None) -> int:
        """Numbers in a cell of a feature column."""
        cells = self.sample[name].drop_null()
        kind, first = cells.type, cells[0].as_py() if len(cells) else None
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if first is None:
            return 1
        if isinstance(first, list):
            return len(first)
        return first.count(separator) + 1 if separator and isinstance(first, str) else 1

    def names(self, column: str, separator: str | None) -> set[str]:
        """Names in the lists of a column, or in its text with the separator between them."""
        cells = self.sample[column].drop_null()
        if pa.types.is_string(cells.type) and separator is not None:
            cells = pc.split_pattern(cells, separator)
        return set(pc.list_flatten(cells).drop_null().cast(pa.string()).to_pylist())

    def distinct(self, *names: str) -> int:
        """Values of some columns in all rows, each once.

        The sample has as many of them as rows drawn evenly would have; where some values are much
        more frequent than others, there are more.
        """
        cells = pa.chunked_array(
            [c for n in names for c in self.sample[n].cast(pa.string()).chunks]
        )
        drawn, found = len(cells), pc.count_distinct(cells).as_py()
        all_rows = len(names) * self.num_rows
        if drawn >= all_rows or found == drawn:
            return int(found) if drawn >= all_rows else all_rows
        few, many = float(found), float(found) * drawn * 2
        while many > few * 1.0001:  # of K values, K (1 - exp(-drawn / K)) are in the sample
            middle = math.sqrt(few * many)
            more = -middle * math.expm1(-drawn / middle) < found
            few, many = (middle, many) if more else (few, middle)
        return round(-few * math.expm1(-all_rows / few))


def count_nodes(nodes: NodeTable, root: Path) -> NodeCounts:
    """Count a table of nodes, whose columns go to scratch files as they are stored.

    Parameters
    ----------
    nodes
        Of a recipe.
    root
        Where its paths begin.

    Returns
    -------
    NodeCounts
        Of its rows and columns.

    Raises
    ------
    DataError
        A file or a column is not there; the message names the key of the recipe.
    """
    table = count_table(nodes, root, "nodes")
    named = {"key": nodes.key, "label": nodes.label, "tags": nodes.tags, "split": nodes.split}
    named |= {name: getattr(nodes, name) for name in NAMES}
    columns_of(nodes, table, [(f"nodes.{key}", name) for key, name in named.items()])
    num_nodes, scratch = table.num_rows, 0
    found = NodeCounts(num_nodes)
    if nodes.features:
        names, width = _width(nodes, table, nodes.features, "nodes.features")
        found.features, scratch = (num_nodes, width, 4), scratch + 4 * num_nodes * width
    if nodes.key is not None:  # by id, and ids in their order
        integer = table.is_integer(nodes.key)
        if nodes.key_type is not None:
            integer = nodes.key_type == "integer"
        if not integer:
            found.has_text_keys, found.key_bytes = True, table.text_bytes(nodes.key)
            found.arrays.append(round(num_nodes * found.key_bytes))
        found.arrays += [8 * num_nodes] * 2
    if nodes.label is not None:
        found.label_bytes, scratch = label_bytes(1), scratch + 8 * num_nodes
        if table.has_names(nodes.label):
            found.arrays += [0, 0]  # their names are few
    if nodes.labels:
        names, width = _width(nodes, table, nodes.labels, "nodes.labels")
        found.label_bytes, scratch = label_bytes(width), scratch + 4 * num_nodes * width
        found.arrays += [0, 0] * (width == len(names))
    if nodes.tags is not None:
        check_tags(nodes, in_lists=not pa.types.is_string(table.sample[nodes.tags].type))
        width = len(table.names(nodes.tags, nodes.separator))
        found.label_bytes, scratch = label_bytes(width), scratch + num_nodes * width
        found.arrays += [0, 0]
    found.has_splits = bool(nodes.split) or any(getattr(nodes, name) for name in NAMES)
    scratch += 3 * num_nodes * found.has_splits + sum(found.arrays)
    found.reading = Reading(
        table_bytes=table.num_bytes, table_rows=num_nodes, scratch_bytes=scratch, exact=table.exact
    )
    return found


def count_ends(edges: EdgeTable, root: Path) -> NodeCounts:
    """Count the nodes that a table of edges names, of which there is no table.

    Parameters
    ----------
    edges
        Of a recipe.
    root
        Where its paths begin.

    Returns
    -------
    NodeCounts
        Estimated from a sample, which is low where a few of them have most of the edges.

    Raises
    ------
    DataError
        A file or a column is not there.
    """
    table = count_table(edges, root, "edges")
    ends = edges.src, edges.dst
    columns_of(edges, table, list(zip(("edges.src", "edges.dst"), ends, strict=True)))
    # rows that are sorted by one end are no even sample of it, but may be one of the other
    count = max(table.distinct(*ends), *map(table.distinct, ends))
    found = NodeCounts(count, has_text_keys=not all(map(table.is_integer, ends)))
    found.arrays.append(8 * count)
    if found.has_text_keys:
        found.key_bytes = sum(map(table.text_bytes, ends)) / 2
        found.arrays.append(round(found.key_bytes * count))
    exact = table.exact and len(table.sample) == table.num_rows
    found.reading = Reading(scratch_bytes=sum(found.arrays), exact=exact)
    return found


def count_edges(edges: EdgeTable, root: Path, pair_bytes: int) -> EdgeCounts:
    """Count a table of edges, whose ids and values go to scratch files.

    Parameters
    ----------
    edges
        Of a recipe.
    root
        Where its paths begin.
    pair_bytes
        Of an edge in ids.

    Returns
    -------
    EdgeCounts
        Of its rows, and of what they carry.

    Raises
    ------
    DataError
        A file or a column is not there; the message names the key of the recipe.
    """
    table = count_table(edges, root, "edges")
    named: dict[str, tuple[str | None, ...]]
    named = {"src": (edges.src,), "dst": (edges.dst,), "weight": (edges.weight,)}
    named |= {"attr": edges.attr, "time": (edges.time,), "relation": (edges.relation,)}
    roles = [(f"edges.{key}", name) for key, names in named.items() for name in names]
    columns_of(edges, table, roles)
    carried = {key: sum(name is not None for name in named[key]) for key in _STORED}
    reading = Reading(
        table_bytes=table.num_bytes,
        table_rows=table.num_rows,
        scratch_bytes=(pair_bytes + 8 * sum(carried.values())) * table.num_rows,
        exact=table.exact,
    )
    values = {key: _STORED[key] * columns for key, columns in carried.items() if columns}
    key_bytes = (table.text_bytes(edges.src) + table.text_bytes(edges.dst)) / 2
    return EdgeCounts(table.num_rows, reading, values, key_bytes)


def _width(
    nodes: NodeTable, table: TableCounts, patterns: tuple[str, ...], path: str
) -> tuple[list[str], int]:
    """Columns that patterns stand for, and the numbers of a row in all of them."""
    names = named_columns(table.sample.column_names, nodes, patterns, path)
    return names, sum(table.width(name, nodes.separator) for name in names)


def count_table(table: Table, root: Path, what: str) -> TableCounts:
    """Count the rows of a table.

    Parameters
    ----------
    table
        Its files and how they are cut.
    root
        Where their paths begin.
    what
        For messages.

    Returns
    -------
    TableCounts
        Of Parquet by the footers; of text estimated where the files hold more than a MiB.

    Raises
    ------
    DataError
        There are no such files, or one cannot be read.
    """
    paths = [path for name in table.files for path in matches(root, name)]
    num_bytes = sum(path.stat().st_size for path in paths)
    if kind_of(paths, what) == "text":
        rows, exact, sample = _text_rows(paths, table)
        return TableCounts(rows, num_bytes, exact, sample)
    try:
        count = sum(pq.read_metadata(path).num_rows for path in paths)
        first = pq.ParquetFile(paths[0])
        batch = next(first.iter_batches(_sampled_rows(first.metadata)), None)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{paths[0].name}: cannot be read: {error}", "Fetch or write it again."
        ) from None
    sample = first.schema_arrow.empty_table() if batch is None else pa.table(batch)
    return TableCounts(count, num_bytes, True, sample)


def columns_of(table: Table, counts: TableCounts, roles: Sequence[tuple[str, str | None]]) -> None:
    """Refuse a recipe whose columns are not there.

    Parameters
    ----------
    table
        Of the recipe.
    counts
        What its files hold.
    roles
        Keys of the recipe and the columns they name.
    """
    for path, name in roles:
        if name is not None:
            check_column(counts.sample.column_names, name, table, path)


def _sampled_rows(meta: pq.FileMetaData) -> int:
    """Rows of Parquet that a sample has: as many as are a MiB, by the first of its groups."""
    if meta.num_row_groups == 0:
        return 1
    group = meta.row_group(0)
    rows: int = SAMPLE_BYTES * group.num_rows // max(1, group.total_byte_size)
    return max(1, min(_MOST_ROWS, rows))


def _text_rows(paths: list[Path], table: Table) -> tuple[int, bool, pa.Table]:
    """Rows of CSV files, whether that is exact, and those of the first file as strings."""
    names = header(paths[0], table)
    count = taken = read = 0
    exact, sample = True, list[list[str]]()
    for path in paths:
        if read >= SAMPLE_BYTES:  # what is left is like what has been read
            exact = False
            break
        head = head_of(path, SAMPLE_BYTES - read)
        rows = _rows(head.text.decode(table.encoding, "replace"), path, table)
        rows = rows[table.skip + table.header :]
        rows = rows if head.exact else rows[:-1]
        sample = sample or rows
        exact = exact and head.exact
        count, taken, read = count + len(rows), taken + head.taken, read + len(head.text)
    if not exact:
        count = round(count * sum(path.stat().st_size for path in paths) / max(1, taken))
    whole = [row for row in sample if len(row) == len(names)]
    columns = list(zip(*whole, strict=True)) or [()] * len(names)
    cells = [pa.array([cell or None for cell in column], pa.string()) for column in columns]
    return count, exact, pa.table(dict(zip(names, cells, strict=True)))


def _rows(text: str, path: Path, table: Table) -> list[list[str]]:
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE}
    if table.quote:
        quoting = {"quotechar": table.quote}
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    try:
        found = list(csv.reader(lines, delimiter=delimiter_of(path, table), **quoting))
    except csv.Error as error:
        raise DataError(f"{path.name}: {error}", "Correct the file.") from None
    return [row for row in found if row]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
