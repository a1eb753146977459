"""How many rows tables hold, and what their columns are, from footers and a sample of the text."""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnnx.errors import DataError
from gnnx.prepare.counting import SAMPLE_BYTES, head_of
from gnnx.prepare.tables import check_column, delimiter_of, header, kind_of, matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gnnx.prepare.recipe import Table

_SAMPLE_ROWS = 1000


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
        batch = next(first.iter_batches(_SAMPLE_ROWS), None)
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
        sample = sample or rows[:_SAMPLE_ROWS]
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
