"""Tables in files, CSV or Parquet, which DuckDB reads, joins and sorts within its share of memory.

It spills beside the output. What comes out are Arrow batches, or arrays in scratch files.

Letters: N nodes, B bytes of all strings.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import itertools
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from gnnx import threads
from gnnx.errors import BudgetError, DataError, GnnxError, ResourceError, UsageError
from gnnx.memory import Tier, format_bytes
from gnnx.prepare.arrays import check_plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.recipe import Table
    from gnnx.threads import Progress

_BATCH = 1 << 16  # rows that come out of DuckDB at a time
_LINE_BYTES = 2_000_000  # of a line of CSV, at most
_CSV_BYTES = 16 * _LINE_BYTES  # of a buffer of CSV; a scan of DuckDB pins several
_SMALLEST_BYTES = 32 << 20  # below which DuckDB does not start
_THREAD_BYTES = 64 << 20
_TEXT = {".csv", ".tsv", ".txt", ".edgelist", ".content", ".cites"}
_PARQUET = {".parquet", ".pq"}
_PACKED = {".gz", ".zst"}
# In messages of DuckDB about a line of CSV.
_LINE, _FILE = (
    re.compile(r"CSV Error on Line: (\d+)"),
    re.compile(r"^\s*file = (.*)$", re.MULTILINE),
)
_REASON = re.compile(
    r"Expected Number of Columns.*|Error when converting.*|Value with.*|Invalid unicode.*"
)
_QUOTED, _CLASS = re.compile(r" '(/[^']*)'"), re.compile(r"^[A-Z][\w ]* Error: ")
INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
"""Types of columns whose values fit 64 bits with a sign."""


class Tables:
    """Tables in files, and the numbering of nodes by their keys.

    Parameters
    ----------
    workspace
        Takes scratch files; its ledger gives DuckDB half of what is free.
    root
        Where relative paths begin.
    progress
        Told the rows that are done.

    Raises
    ------
    UsageError
        DuckDB is not installed.
    BudgetError
        The budget is too small for DuckDB.
    """

    def __init__(self, workspace: Workspace, root: Path, progress: Progress | None = None) -> None:
        try:
            import duckdb
        except ImportError:
            raise UsageError(
                "keys, and ids that have gaps, need DuckDB to be numbered, and it is not installed",
                "Install it: pip install 'gnnx[tables]'; of ids with gaps, or give --num-nodes.",
            ) from None
        self.workspace, self._root, self._progress = workspace, root, progress
        self._errors = duckdb.Error
        free = workspace.ledger.free_bytes(Tier.HOST)
        share = (4 << 30) if free is None else free // 2
        if share < _SMALLEST_BYTES:
            raise BudgetError(
                f"tables: {format_bytes(share)} of memory are left for joining and sorting them",
                f"Give --memory {3 * _SMALLEST_BYTES >> 20}MiB or more.",
                tier=Tier.HOST.value,
                shortfall_bytes=_SMALLEST_BYTES - share,
                smallest_bytes=3 * _SMALLEST_BYTES,
            )
        self._held = workspace.ledger.reserve(share, Tier.HOST, "tables")
        self._csv_bytes = min(_CSV_BYTES, share // 32)
        self._spill = tempfile.mkdtemp(prefix=".gnnx-tables-", dir=workspace.folder)
        self.db = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{share >> 20}MiB",
                "temp_directory": self._spill,
                # each thread pins blocks of its own while it joins
                "threads": max(1, min(threads.num_threads(), share // _THREAD_BYTES)),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self.run("SET enable_progress_bar = false")  # it would go to stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.db.close()
        self._held.release()
        shutil.rmtree(self._spill, ignore_errors=True)

    # Files

    def scan(self, table: Table, what: str) -> str:
        """Write SQL that reads the rows of a table, in the order of its files.

        Parameters
        ----------
        table
            Its files and how they are cut.
        what
            For messages.

        Returns
        -------
        str
            To stand after FROM.

        Raises
        ------
        DataError
            There are no such files, or they are of unknown kind.
        """
        paths = [path for name in table.files for path in self.matches(name)]
        listed = f"[{', '.join(literal(str(path)) for path in paths)}]"
        if kind_of(paths, what) == "parquet":
            return f"read_parquet({listed})"
        names = header(paths[0], table)
        columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
        return (
            f"read_csv({listed}, auto_detect=false, columns={{{columns}}}, "
            f"header={table.header}, skip={table.skip}, "
            f"delim={literal(delimiter_of(paths[0], table))}, "
            f"quote={literal(table.quote)}, escape={literal(table.quote)}, comment='', "
            f"encoding='{table.encoding}', nullstr='', allow_quoted_nulls=false, strict_mode=true, "
            f"buffer_size={self._csv_bytes}, max_line_size={min(_LINE_BYTES, self._csv_bytes)})"
        )

    def matches(self, name: str) -> list[Path]:
        """Find the paths below the root that a name or glob stands for; at least one."""
        return matches(self._root, name)

    def columns(self, scan: str) -> dict[str, str]:
        """Types of the columns of a table, by name."""
        rows = self.fetch(f"DESCRIBE SELECT * FROM {scan}")
        return {name: kind for name, kind, *_ in rows}

    def column(self, columns: dict[str, str], name: str, table: Table, path: str) -> str:
        """Quote the name of a column, which has to be there; `path` is the recipe's key for it."""
        check_column(columns, name, table, path)
        return quoted(name)

    def count(self, table: Table) -> int:
        """Rows of a table."""
        ((count,),) = self.fetch(f"SELECT count(*) FROM {self.scan(table, 'node')}")
        return int(count)

    # DuckDB

    def in_order(self) -> None:
        """Let rows come out in the order of the files."""
        self.run("SET preserve_insertion_order = true")

    def run(self, sql: str) -> None:
        """Run a statement without a result."""
        self.fetch(sql)

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement with a small result."""
        with self._explained():
            cursor = self.db.execute(sql)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def insert(self, table: str, values: Iterator[pa.Array]) -> None:
        """Append rows to a table of one column, many at a time: an insertion takes 10 ms."""
        waiting: list[pa.Array] = []
        for array in itertools.chain(values, [None]):
            waiting += [] if array is None else [array]
            if waiting and (array is None or sum(map(len, waiting)) >= _BATCH):
                self.db.register("batch", pa.table([pa.chunked_array(waiting)], ["value"]))
                self.run(f"INSERT INTO {table} SELECT value FROM batch")
                self.db.unregister("batch")
                waiting = []

    def stream(self, sql: str, stage: str) -> Iterator[pa.RecordBatch]:
        """Run a query whose result comes in batches; `stage` is what progress is told."""
        with self._explained():
            reader = self.db.sql(sql).to_arrow_reader(_BATCH)
        done = 0
        while True:
            with self._explained():
                batch = next(reader, None)
            if batch is None:
                return
            done += len(batch)
            if self._progress:
                self._progress(stage, done, done)
            yield batch

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of DuckDB into ours."""
        try:
            yield
        except (self._errors, pa.ArrowInvalid, OSError) as error:
            if isinstance(error, GnnxError):
                raise
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> GnnxError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        first = lines[0] if lines else type(error).__name__
        if "OutOfMemory" in type(error).__name__ or "Out of Memory" in first:
            return ResourceError(f"tables: {first}", "Give more --memory.")
        if "No space left" in first or "max_temp_directory_size" in str(error):
            return ResourceError(f"tables: {first}", "Free some space, or write elsewhere.")
        line = _LINE.search(str(error))
        if line is None:
            named = _QUOTED.search(first)
            if named is None:
                return DataError(first, "Correct the file, or the recipe.")
            cause = _CLASS.sub("", first.replace(f" '{named[1]}'", " it"))
            return DataError(f"{Path(named[1]).name}: {cause}", "Fetch or write it again.")
        file, reason = _FILE.search(str(error)), _REASON.search(str(error))
        where = f"{Path(file[1]).name if file else 'table'}:{line[1]}"
        return DataError(f"{where}: {reason[0] if reason else first}", "Correct the line.")

    def numbers(self, name: str, batches: Iterator[pa.RecordBatch]) -> Array:
        """Keep the first column of a result as int64."""
        scratch, count = self.workspace.scratch(), 0
        for batch in batches:
            values = batch.column(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
            scratch.append(values)
            count += len(values)
        return scratch.array(name, (count,), np.int64)

    def strings(self, name: str, batches: Iterator[pa.RecordBatch]) -> dict[str, Array]:
        """Keep the first column of a result, text.

        Parameters
        ----------
        name
            Of the arrays.
        batches
            The result.

        Returns
        -------
        dict of str to Array
            ``<name>_offsets`` (N + 1,) int64 and ``<name>_bytes`` (B,) uint8, UTF-8.
        """
        offsets, text = self.workspace.scratch(), self.workspace.scratch()
        offsets.append(np.zeros(1, np.int64))
        count = total = 0
        for batch in batches:
            column = batch.column(0).cast(pa.large_binary())
            ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset :][: len(column) + 1]
            offsets.append(ends[1:] - ends[0] + total)
            data = column.buffers()[2]
            if data is not None:
                text.append(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]])
            count, total = count + len(column), total + int(ends[-1] - ends[0])
        return {
            f"{name}_offsets": offsets.array(name, (count + 1,), np.int64),
            f"{name}_bytes": text.array(name, (total,), np.uint8),
        }


def matches(root: Path, name: str) -> list[Path]:
    """Find the paths below a root that a name or glob stands for; at least one."""
    path = root / name
    found = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path)))]
    if not found:
        raise DataError(f"{path}: no such file", "Give a path or glob that has matches.")
    for match in found:
        check_plain(match)
    return found


def check_column(columns: Collection[str], name: str, table: Table, path: str) -> None:
    """Refuse a column that is not there; `path` is the recipe's key for it."""
    if name not in columns:
        raise DataError(
            f"{path}: no column {name!r} in {table.files[0]}",
            f"Its columns are {', '.join(list(columns)[:20])}.",
        )


def kind_of(paths: Sequence[Path], what: str) -> str:
    """Return "parquet" or "text", which all files of a table of `what` have to be."""
    kinds = {_kind(path) for path in paths}
    if kinds not in ({"parquet"}, {"text"}):
        raise DataError(
            f"{paths[0].name}: a table of {what} of unknown kind",
            "Give .csv, .tsv or .txt, also with .gz or .zst, or .parquet.",
        )
    return kinds.pop()


def _kind(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    if plain.suffix in _PARQUET:
        return "parquet"
    return "text" if plain.suffix in _TEXT else "unknown"


def delimiter_of(path: Path, table: Table) -> str:
    """Return what stands between the fields of a CSV file."""
    if table.delimiter is not None:
        return table.delimiter
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    return "," if plain.suffix == ".csv" else "\t"


def header(path: Path, table: Table) -> list[str]:
    """Names of the columns of a CSV file."""
    try:
        with pa.input_stream(str(path)) as stream:
            text = stream.read(1 << 20).decode(table.encoding, "replace")
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path.name}: cannot be read: {error}", "Fetch the file again.") from None
    (row,) = rows_of(text, path, table, 1) or [[]]
    if not row:
        raise DataError(f"{path.name}: no columns in it", "Give a table with a row or a header.")
    names = row if table.header else [f"column{i}" for i in range(len(row))]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path.name}: column {twice!r} is there twice", "Name each column once.")
    return names


def rows_of(text: str, path: Path, table: Table, most: int | None = None) -> list[list[str]]:
    """Split what a CSV file begins with into rows, its header among them.

    Parameters
    ----------
    text
        Up to some MiB.
    path
        The file, for its delimiter and for messages.
    table
        How it is written.
    most
        Rows to return; all by default.

    Returns
    -------
    list of list of str
        Fields of each row after the lines that are skipped; of a blank line none.

    Raises
    ------
    DataError
        It is no CSV.
    """
    quoting: dict[str, Any] = {"quotechar": table.quote or None}
    if not table.quote:
        quoting["quoting"] = csv.QUOTE_NONE
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    _check_skipped([*itertools.islice(lines, table.skip)], path, table)
    limit = csv.field_size_limit()  # of the whole process, 128 KiB by default
    csv.field_size_limit(max(limit, len(text)))
    try:
        reader = csv.reader(lines, delimiter=delimiter_of(path, table), **quoting)
        return [*itertools.islice(reader, most)]
    except csv.Error as error:
        raise DataError(f"{path.name}: {error}", "Correct the file.") from None
    finally:
        csv.field_size_limit(limit)


def _check_skipped(lines: list[str], path: Path, table: Table) -> None:
    """Refuse a line to be skipped in which a quote opens: DuckDB would skip all of the field."""
    if not table.quote:
        return
    for number, line in enumerate(lines, 1):
        opens = line.startswith(table.quote) or delimiter_of(path, table) + table.quote in line
        if opens and line.count(table.quote) % 2:
            raise DataError(
                f"{path.name}:{number}: a quote opens in this line, which is skipped, and does not "
                "close",
                'Take the line out of the file, or give quote = "" if no field is quoted.',
            )


def first_line(path: Path, table: Table) -> int:
    """Line of the first row of a file, from 1; in Parquet, whose rows have no lines, 0."""
    return 0 if _kind(path) == "parquet" else 1 + table.skip + table.header


def literal(text: str) -> str:
    """Write text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def quoted(text: str) -> str:
    """Write a name for SQL."""
    return '"' + text.replace('"', '""') + '"'
