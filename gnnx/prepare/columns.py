"""Columns of node tables: features, labels and splits, in the order of the rows.

Letters: N nodes, F feature width, r rows of a piece.
"""

from __future__ import annotations

import fnmatch
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnx.errors import DataError
from gnnx.prepare.sparse import SparseRows
from gnnx.prepare.splits import NAMES
from gnnx.prepare.tables import Tables, check_column, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array
    from gnnx.prepare.recipe import FeatureFile, NodeTable

JSON_FACTOR = 14  # bytes in memory for one of the file: its objects, and the rows made of them
_SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class NodeColumns:
    """Reads columns of a node table.

    Parameters
    ----------
    tables
        Where DuckDB runs.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def features(self, table: NodeTable) -> Array:
        """Feature columns side by side.

        Parameters
        ----------
        table
            Names the columns.

        Returns
        -------
        Array
            (N, F) float32; a missing number is NaN.

        Raises
        ------
        DataError
            A column is missing, a field is no number, or lists differ in length.
        """
        scan = self._tables.scan(table, "nodes")
        names = self._named(table, table.features, "nodes.features")
        return self._numbers(scan, table, names)

    def _numbers(self, scan: str, table: NodeTable, names: list[str]) -> Array:
        """(N, F) of columns of numbers or of lists, side by side."""
        columns = self._tables.columns(scan)
        chosen = ", ".join(_feature(name, columns[name], table.separator) for name in names)
        self._tables.in_order()
        scratch, count = self._tables.workspace.scratch(), 0
        widths: list[int] = []
        for batch in self._tables.stream(f"SELECT {chosen} FROM {scan}", "features"):
            parts = [
                _matrix(column, f"{table.files[0]}: column {name}", count)
                for column, name in zip(batch.columns, names, strict=True)
            ]
            found = [part.shape[1] for part in parts]
            widths = widths or found
            for name, width, other in zip(names, widths, found, strict=True):
                if width != other:
                    raise _ragged(f"{table.files[0]}: column {name}", count, other, width)
            scratch.append(np.concatenate(parts, axis=1))
            count += len(batch)
        return scratch.array(table.files[0], (count, sum(widths)), np.float32)

    def _named(self, table: NodeTable, patterns: tuple[str, ...], path: str) -> list[str]:
        columns = self._tables.columns(self._tables.scan(table, "nodes"))
        return named_columns(columns, table, patterns, path)

    def labels(self, table: NodeTable) -> dict[str, Array]:
        """Classes of the nodes, and the names of the classes where they have some.

        Parameters
        ----------
        table
            Names the column.

        Returns
        -------
        dict of str to Array
            ``y`` (N,), NaN or -1 for none; ``class_offsets`` and ``class_bytes`` of the names.
        """
        scan = self._tables.scan(table, "nodes")
        columns = self._tables.columns(scan)
        assert table.label is not None
        column = self._tables.column(columns, table.label, table, "nodes.label")
        where = f"{table.files[0]}: {table.label}"
        if self._is_number(scan, column, columns[table.label]):
            self._tables.in_order()
            scratch, count = self._tables.workspace.scratch(), 0
            for batch in self._tables.stream(
                f"SELECT CAST({column} AS DOUBLE) FROM {scan}", "labels"
            ):
                scratch.append(batch.column(0).to_numpy(zero_copy_only=False))  # missing: NaN
                count += len(batch)
            return {"y": scratch.array(where, (count,), np.float64)}
        self._tables.run(
            f"CREATE TABLE class AS SELECT DISTINCT {column}::VARCHAR AS name FROM {scan} "
            f"WHERE {column} IS NOT NULL"
        )
        names = self._tables.fetch("SELECT name FROM class ORDER BY name")
        return {
            "y": self._classes(scan, column, [name for (name,) in names], where),
            **self._tables.strings(
                "class", self._tables.stream("SELECT name FROM class ORDER BY name", "labels")
            ),
        }

    def several_labels(self, table: NodeTable) -> tuple[Array, dict[str, Array]]:
        """Labels of nodes that have several, from a column each or from lists.

        Parameters
        ----------
        table
            Names the columns.

        Returns
        -------
        tuple
            (N, C), NaN where one is missing; and ``class_offsets`` and ``class_bytes`` of the names
            of the columns, where each is one class.
        """
        scan = self._tables.scan(table, "nodes")
        names = self._named(table, table.labels, "nodes.labels")
        labels = self._numbers(scan, table, names)
        if labels.width != len(names):
            return labels, {}
        return labels, self._class_names(names)

    def tags(self, table: NodeTable) -> tuple[Array, dict[str, Array]]:
        """Labels of nodes that have several, from lists of names.

        Parameters
        ----------
        table
            Names the column, whose empty lists are nodes without any of the labels; missing ones
            are nodes without labels.

        Returns
        -------
        tuple
            (N, C) of 0, 1 and -1; and ``class_offsets`` and ``class_bytes`` of the names, which
            ascend.
        """
        scan = self._tables.scan(table, "nodes")
        columns = self._tables.columns(scan)
        assert table.tags is not None
        column = self._tables.column(columns, table.tags, table, "nodes.tags")
        in_lists = columns[table.tags].endswith("]")
        check_tags(table, in_lists=in_lists)
        if table.separator is not None and not in_lists:
            column = f"string_split({column}, {literal(table.separator)})"
        column = f"CAST({column} AS VARCHAR[])"
        found = self._tables.fetch(
            f"SELECT DISTINCT name FROM (SELECT unnest({column}) AS name FROM {scan}) "
            "WHERE name IS NOT NULL ORDER BY name"
        )
        names = [name for (name,) in found]
        scratch, count, values = self._tables.workspace.scratch(), 0, pa.array(names, pa.string())
        self._tables.in_order()
        for batch in self._tables.stream(f"SELECT {column} FROM {scan}", "labels"):
            lists = batch.column(0)
            rows = np.zeros((len(lists), len(names)), np.int8)
            numbers = pc.index_in(lists.flatten(), values).fill_null(-1)
            lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            at = np.repeat(np.arange(len(lists)), lengths), numbers.to_numpy(zero_copy_only=False)
            rows[at[0][at[1] >= 0], at[1][at[1] >= 0]] = 1
            rows[lists.is_null().to_numpy(zero_copy_only=False)] = -1
            scratch.append(rows)
            count += len(lists)
        labels = scratch.array(f"{table.files[0]}: {table.tags}", (count, len(names)), np.int8)
        return labels, self._class_names(names)

    def _class_names(self, names: list[str]) -> dict[str, Array]:
        batch = pa.record_batch({"name": pa.array(names, pa.string())})
        return self._tables.strings("class", iter([batch]))

    def _classes(self, scan: str, column: str, names: list[str], where: str) -> Array:
        """Give the number of the class of each row, -1 for none."""
        scratch, count, values = self._tables.workspace.scratch(), 0, pa.array(names, pa.string())
        self._tables.in_order()
        for batch in self._tables.stream(f"SELECT {column}::VARCHAR FROM {scan}", "labels"):
            found = pc.index_in(batch.column(0), values).fill_null(-1)
            scratch.append(found.to_numpy(zero_copy_only=False).astype(np.int64))
            count += len(batch)
        return scratch.array(where, (count,), np.int64)

    def _is_number(self, scan: str, column: str, kind: str) -> bool:
        if kind != "VARCHAR":
            return kind != "BOOLEAN" and not kind.endswith("[]")
        ((odd,),) = self._tables.fetch(
            f"SELECT count(*) FROM {scan} WHERE {column} IS NOT NULL "
            f"AND TRY_CAST({column} AS DOUBLE) IS NULL"
        )
        return not odd

    def splits(self, table: NodeTable) -> dict[str, Array]:
        """Read the splits as flags, from one column of words or from columns of booleans.

        Parameters
        ----------
        table
            Names the columns.

        Returns
        -------
        dict of str to Array
            (N,) bool by split.

        Raises
        ------
        DataError
            A field is no boolean.
        """
        scan = self._tables.scan(table, "nodes")
        columns = self._tables.columns(scan)
        tests: dict[str, str] = {}
        if table.split is not None:
            column = self._tables.column(columns, table.split, table, "nodes.split")
            for name in NAMES:
                words = ", ".join(literal(w) for w, split in _SPLIT_WORDS.items() if split == name)
                tests[name] = f"coalesce(lower({column}) IN ({words}), false)"
        for name in NAMES:
            flag = getattr(table, name)
            if flag is not None:
                column = self._tables.column(columns, flag, table, f"nodes.{name}")
                tests[name] = f"coalesce(CAST({column} AS BOOLEAN), false)"
        if not tests:
            return {}
        self._tables.in_order()
        scratch = {name: self._tables.workspace.scratch() for name in tests}
        count = 0
        chosen = ", ".join(tests.values())
        for batch in self._tables.stream(f"SELECT {chosen} FROM {scan}", "splits"):
            for name, column in zip(tests, batch.columns, strict=True):
                scratch[name].append(column.to_numpy(zero_copy_only=False))
            count += len(batch)
        return {
            name: out.array(table.files[0], (count,), np.bool_) for name, out in scratch.items()
        }

    def json_features(self, given: FeatureFile, num_nodes: int) -> SparseRows:
        """Columns with a one, from a JSON object of lists by row or by key.

        Parameters
        ----------
        given
            The file.
        num_nodes
            N; nodes that are not in the file have no ones.

        Returns
        -------
        SparseRows
            (N, F) of ones, F = largest column + 1.

        Raises
        ------
        DataError
            It is not such a file, or names an unknown node.
        BudgetError
            It does not fit the memory.
        """
        (path,) = self._tables.matches(given.file)
        with self._tables.workspace.whole(path.name, path.stat().st_size, JSON_FACTOR):
            return self._json_rows(path, given.by, num_nodes)

    def _json_rows(self, path: Path, by: str, num_nodes: int) -> SparseRows:
        try:
            lists = json.loads(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path.name}: not JSON: {error}", "Correct the file.") from None
        ids = self._rows_of(list(lists), by, path.name, num_nodes)
        rows: list[list[int]] = [[]] * num_nodes
        for node, columns in zip(ids, lists.values(), strict=True):
            if not all(type(column) is int and column >= 0 for column in columns):
                raise DataError(f"{path.name}: a column of {node} is no number", "Give integers.")
            rows[node] = sorted(set(columns))
        indptr = np.zeros(num_nodes + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        indices = np.fromiter((c for row in rows for c in row), np.int64, int(indptr[-1]))
        kept = [self._kept(path.name, array) for array in (indptr, indices)]
        return SparseRows(kept[0], kept[1], None, int(indices.max(initial=-1)) + 1)

    def _rows_of(self, names: list[str], by: str, where: str, num_nodes: int) -> list[int]:
        if by == "row":
            known = {str(row): row for row in range(num_nodes)}
        else:
            known = {str(key): row for key, row in self._tables.fetch("SELECT key, id FROM node")}
        for name in names:
            if name not in known:
                raise DataError(
                    f"{where}: {name!r} is not the {by} of a node", 'Give by = "row" or "key".'
                )
        return [known[name] for name in names]

    def _kept(self, where: str, values: NDArray[np.int64]) -> Array:
        scratch = self._tables.workspace.scratch()
        scratch.append(values)
        return scratch.array(where, values.shape, values.dtype)


def check_tags(table: NodeTable, *, in_lists: bool) -> None:
    """Refuse names in text, not in lists, of which it is not said what stands between them."""
    if not in_lists and table.separator is None:
        raise DataError(
            f"nodes.tags: {table.tags} is text, and what stands between names is not known",
            'Say so with separator = ";".',
        )


def named_columns(
    columns: Collection[str], table: NodeTable, patterns: tuple[str, ...], path: str
) -> list[str]:
    """Columns that patterns stand for; those that have another part are none of them."""
    roles = {table.key, table.label, table.tags, table.split}
    roles |= {table.train, table.val, table.test}
    roles |= set(table.labels) if patterns is table.features else set()
    names: list[str] = []
    for pattern in patterns:
        if pattern in columns:
            found = [pattern]
        else:
            found = [n for n in columns if fnmatch.fnmatchcase(n, pattern) and n not in roles]
        if not found:
            check_column(columns, pattern, table, path)
        names += [name for name in found if name not in names]
    return names


def _feature(name: str, kind: str, separator: str | None) -> str:
    """Expression of a feature column as FLOAT or a list of them."""
    column = quoted(name)
    if kind == "VARCHAR" and separator is not None:
        return f"CAST(string_split({column}, {literal(separator)}) AS FLOAT[]) AS {column}"
    if kind.endswith("]"):
        return f"CAST({column} AS FLOAT[]) AS {column}"
    return f"CAST({column} AS FLOAT) AS {column}"


def _matrix(column: pa.Array, where: str, first_row: int) -> NDArray[np.float32]:
    """(r, width) of a column of numbers or of lists of one length."""
    if not pa.types.is_list(column.type):
        values: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(
            np.float32, copy=False
        )
        return values.reshape(-1, 1)
    lengths = column.value_lengths().fill_null(-1).to_numpy()
    width = int(lengths[0]) if len(lengths) else 0
    wrong = np.flatnonzero(lengths != max(width, 0))
    if len(wrong):
        raise _ragged(where, first_row + int(wrong[0]), int(lengths[wrong[0]]), width)
    numbers: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False)
    return numbers.astype(np.float32, copy=False).reshape(-1, width)


def _ragged(where: str, row: int, found: int, expected: int) -> DataError:
    what = "no list" if found < 0 else f"{found} numbers"
    return DataError(
        f"{where}: {what} in row {row}, {max(expected, 0)} in the rows before",
        "Give every node a list of the same length.",
    )
