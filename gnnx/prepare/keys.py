"""Nodes numbered 0 … N - 1 by their keys, and edges between keys turned into edges between ids.

Letters: N nodes, E edges, B bytes of all keys.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnnx.errors import DataError
from gnnx.prepare.lookup import KeyList
from gnnx.prepare.recipe import Table
from gnnx.prepare.tables import INTEGERS, Tables, first_line, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gnnx.prepare.arrays import Array
    from gnnx.prepare.edges import EdgeStream
    from gnnx.prepare.recipe import EdgeTable, NodeTable


class NodeKeys:
    """Numbers nodes, once, and looks their keys up.

    Parameters
    ----------
    tables
        Where DuckDB runs.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables, self._key_type = tables, "BIGINT"

    def number_nodes(self, table: NodeTable) -> None:
        """Give the nodes of a table ids in the order of its rows.

        Parameters
        ----------
        table
            With a key column.

        Raises
        ------
        DataError
            A key is missing, or there twice.
        """
        assert table.key is not None
        scan = self._tables.scan(table, "nodes")
        columns = self._tables.columns(scan)
        column = self._tables.column(columns, table.key, table, "nodes.key")
        integer = columns[table.key] in INTEGERS
        if table.key_type is not None:
            integer = table.key_type == "integer"
        self._key_type = "BIGINT" if integer else "VARCHAR"
        self._tables.in_order()
        self._tables.run(
            f"CREATE TABLE node AS SELECT {self._as_key(column, columns[table.key])} AS key, "
            f"row_number() OVER () - 1 AS id, {column} AS raw FROM {scan}"
        )
        missing = self._tables.fetch(
            "SELECT id, raw FROM node WHERE key IS NULL ORDER BY id LIMIT 1"
        )
        for row, raw in missing:
            what = "has no key" if raw is None else f"has the key {raw!r}, which is no integer"
            raise DataError(f"{table.files[0]}: row {row} {what}", "Give every node a key.")
        twice = self._tables.fetch(
            "SELECT key, count(*) FROM node GROUP BY key HAVING count(*) > 1 ORDER BY key LIMIT 1"
        )
        for key, count in twice:
            raise DataError(
                f"{table.files[0]}: key {key!r} is there {count} times",
                "Give every node a key of its own.",
            )

    def number_rows(self, table: NodeTable) -> None:
        """Let edges name the nodes of a table by the row, from 0 on.

        Parameters
        ----------
        table
            Without a key column.
        """
        count = self._tables.count(table)
        self._tables.run(
            f"CREATE TABLE node AS SELECT range AS key, range AS id FROM range({count})"
        )

    def number_ends(self, ends: KeyList) -> None:
        """Give the nodes that edges name ids in ascending order of their keys.

        Parameters
        ----------
        ends
            Their keys, as often as edges name them.
        """
        self._tables.run(f"CREATE TABLE found (key {self._key_type})")
        self._tables.insert("found", ends.distinct())
        self._tables.run(
            "CREATE TABLE node AS SELECT key, row_number() OVER (ORDER BY key) - 1 AS id "
            "FROM found ORDER BY key"
        )
        self._tables.run("DROP TABLE found")

    @property
    def num_nodes(self) -> int:
        """N."""
        ((count,),) = self._tables.fetch("SELECT count(*) FROM node")
        return int(count)

    def key_arrays(self, *, ordered: bool) -> dict[str, Array]:
        """Keys by id, and ids by key.

        Parameters
        ----------
        ordered
            Whether keys ascend with the ids, so that ids by key need no array.

        Returns
        -------
        dict of str to Array
            ``key`` (N,) int64; or ``key_offsets`` (N + 1,) int64 and ``key_bytes`` (B,) uint8,
            UTF-8; and ``key_order`` (N,) int64, ids in ascending order of their keys.
        """
        self._tables.in_order()
        keys = self._tables.stream("SELECT key FROM node ORDER BY id", "keys")
        arrays = self._tables.strings("key", keys) if self._key_type == "VARCHAR" else {}
        if not arrays:
            arrays = {"key": self._tables.numbers("key", keys)}
        if not ordered:
            ids = self._tables.stream("SELECT id FROM node ORDER BY key", "keys")
            arrays["key_order"] = self._tables.numbers("key_order", ids)
        return arrays

    # Edges

    def read_ends(
        self,
        scan: str,
        src: str,
        dst: str,
        where: str,
        values: Mapping[str, Sequence[str]],
    ) -> tuple[KeyList, dict[str, Array]]:
        """Read the keys of the ends of edges, and what edges carry.

        Parameters
        ----------
        scan
            SQL of the table.
        src
            Expression of the key of the source.
        dst
            Likewise, of the destination.
        where
            File, for messages.
        values
            Expressions of numbers, by name of what they are of the edge. With them edges come in
            the order of the table, else in any order.

        Returns
        -------
        tuple
            The keys of sources and of destinations; and (E, columns) float64 by name of the
            values, NaN where one is missing.
        """
        # the CSR is sorted anyway, but whoever has values meets parallel edges in their order
        self._tables.run(f"SET preserve_insertion_order = {bool(values)}")
        sql = [f"CAST({value} AS DOUBLE)" for value in itertools.chain(*values.values())]
        ends, count = KeyList(self._tables.workspace), 0
        kept = {name: self._tables.workspace.scratch() for name in values}
        for batch in self._tables.stream(
            f"SELECT {', '.join([src, dst, *sql])} FROM {scan}", f"edges of {where}"
        ):
            ends.add(batch.columns[:2])
            columns = iter(batch.columns[2:])
            for name, expressions in values.items():
                found = [next(columns).to_numpy(zero_copy_only=False) for _ in expressions]
                kept[name].append(np.stack(found, axis=1))
            count += len(batch)
        ends.close()
        return ends, {
            name: kept[name].array(where, (count, len(expressions)), np.float64)
            for name, expressions in values.items()
        }

    def edges(
        self, ends: KeyList, values: Mapping[str, Array], where: str
    ) -> tuple[Array, int, dict[str, Array]]:
        """Turn edges between keys into edges between ids.

        Parameters
        ----------
        ends
            Keys of sources and of destinations, in two columns.
        values
            Rows of the edges, by name.
        where
            File, for messages.

        Returns
        -------
        tuple
            (E, 2), without edges that name unknown nodes; the number of these; and the values of
            those that are left.
        """
        workspace, num_nodes = self._tables.workspace, self.num_nodes
        index = np.dtype(np.int32 if num_nodes <= 2**31 else np.int64)
        pairs, known, count = workspace.scratch(), workspace.scratch(), 0
        for ids in ends.look_up(self.known("node"), index):
            is_known = (ids[0] | ids[1]) >= 0  # a sign survives
            both = np.ascontiguousarray(ids.T if is_known.all() else ids.T[is_known])
            pairs.append(both)
            known.append(is_known)
            count += len(both)
        unknown = len(ends) // 2 - count
        if unknown:
            flags = known.array(where, (count + unknown,), np.bool_)
            values = {name: _chosen(rows, flags, count) for name, rows in values.items()}
        return pairs.array(where, (count, 2), index), unknown, dict(values)

    def known(self, table: str) -> KeyList:
        """Keys of nodes with their ids, to look them up among.

        Parameters
        ----------
        table
            Of `key` and `id`.

        Returns
        -------
        KeyList
            Closed.
        """
        keys = KeyList(self._tables.workspace)
        self._tables.run("SET preserve_insertion_order = false")
        for batch in self._tables.stream(f"SELECT key, id FROM {table}", "keys"):
            keys.add(batch.columns[:1], batch.column(1).to_numpy())
        keys.close()
        return keys

    def unknown_rows(self, table: EdgeTable, src: str, dst: str, limit: int) -> list[str]:
        """Find the first edges that name unknown nodes.

        Parameters
        ----------
        table
            Of edges.
        src
            Expression of the key of the source.
        dst
            Likewise, of the destination.
        limit
            How many, at most.

        Returns
        -------
        list of str
            File, line (in text) or row from 0 (in Parquet), and the key.
        """
        places: list[str] = []
        for path in (path for name in table.files for path in self._tables.matches(name)):
            scan = self._tables.scan(dataclasses.replace(table, files=(str(path),)), "edges")
            self._tables.in_order()
            rows = self._tables.fetch(
                "SELECT n, CASE WHEN a.id IS NULL THEN p ELSE q END::VARCHAR FROM "
                f"(SELECT row_number() OVER () - 1 AS n, {src} AS s, {dst} AS d, "
                f"{quoted(table.src)} AS p, {quoted(table.dst)} AS q FROM {scan}) e "
                "LEFT JOIN node a ON e.s = a.key LEFT JOIN node b ON e.d = b.key "
                f"WHERE a.id IS NULL OR b.id IS NULL ORDER BY n LIMIT {limit - len(places)}"
            )
            for row, key in rows:
                place = first_line(path, table) + row
                places.append(f"{path.name}:{place}: {'no key' if key is None else repr(key)}")
            if len(places) == limit:
                break
        return places

    def values_of(self, table: EdgeTable) -> dict[str, tuple[str, ...]]:
        """Write SQL of the values of an edge table, by what they are of the edge.

        Parameters
        ----------
        table
            Names the columns.

        Returns
        -------
        dict of str to tuple
            Expressions of ``weight``, ``attr``, ``time`` and ``relation``, where there are any.
        """
        columns = self._tables.columns(self._tables.scan(table, "edges"))
        named = {"weight": (table.weight,), "attr": table.attr, "time": (table.time,)}
        found = {
            kind: tuple(
                self._tables.column(columns, name, table, f"edges.{kind}")
                for name in names
                if name is not None
            )
            for kind, names in named.items()
            if any(names)
        }
        if table.relation is not None:
            column = self._tables.column(columns, table.relation, table, "edges.relation")
            found["relation"] = (
                f"(SELECT id FROM relation WHERE relation.name = {column}::VARCHAR)",
            )
        return found

    def relation_names(self, table: EdgeTable) -> dict[str, Array]:
        """Give the relations of an edge table numbers, in ascending order of their names.

        Parameters
        ----------
        table
            Which may name a column of them.

        Returns
        -------
        dict of str to Array
            ``relation_offsets`` and ``relation_bytes`` of the names; nothing without such a column.
        """
        if table.relation is None:
            return {}
        scan = self._tables.scan(table, "edges")
        columns = self._tables.columns(scan)
        column = self._tables.column(columns, table.relation, table, "edges.relation")
        self._tables.run(
            "CREATE TABLE relation AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS id "
            f"FROM (SELECT DISTINCT {column}::VARCHAR AS name FROM {scan}) WHERE name IS NOT NULL"
        )
        names = self._tables.stream("SELECT name FROM relation ORDER BY id", "relations")
        return self._tables.strings("relation", names)

    def ends_of(self, table: EdgeTable, *, numbered: bool) -> tuple[str, str, str]:
        """Write SQL of an edge table and of the keys of its ends; `numbered` where nodes are."""
        scan = self._tables.scan(table, "edges")
        columns = self._tables.columns(scan)
        src = self._tables.column(columns, table.src, table, "edges.src")
        dst = self._tables.column(columns, table.dst, table, "edges.dst")
        if not numbered:
            integer = columns[table.src] in INTEGERS and columns[table.dst] in INTEGERS
            self._key_type = "BIGINT" if integer else "VARCHAR"
        ends = self._as_key(src, columns[table.src]), self._as_key(dst, columns[table.dst])
        return scan, *ends

    def _as_key(self, column: str, kind: str) -> str:
        """Write a column as keys; what is no key becomes NULL."""
        cast = f"TRY_CAST({column} AS {self._key_type})"
        if self._key_type == "BIGINT" and kind not in INTEGERS:  # DuckDB would round '1.5'
            return f"CASE WHEN regexp_full_match({column}, '[-+]?[0-9]+') THEN {cast} END"
        return cast

    def renumbered(self, edges: EdgeStream) -> tuple[Array, int, int]:
        """Give the nodes that integer edges name new ids, ascending.

        Parameters
        ----------
        edges
            With ids of any size.

        Returns
        -------
        tuple
            (E, 2) in new ids, in their order; the number of nodes whose id is another one; and the
            largest id there was, -1 without edges.
        """
        read, done = KeyList(self._tables.workspace), 0
        for piece in edges.pieces():
            span = piece.num_edges * piece.step
            ends = [piece.ids[at : at + span : piece.step] for at in (piece.src_at, piece.dst_at)]
            for ids in ends:
                if len(ids) and ids.min() < 0:
                    raise DataError(
                        f"{edges.where}: edge {done + int(ids.argmin())}: node {ids.min()} "
                        "is negative",
                        "Give ids from 0 on, or a recipe with a node table that has the keys.",
                    )
            done += piece.num_edges
            read.add([pa.array(np.ascontiguousarray(ids, np.int64)) for ids in ends])
        read.close()
        self.number_ends(read)
        pairs, *_ = self.edges(read, {}, edges.where)
        ((changed, largest),) = self._tables.fetch(
            "SELECT count(*) FILTER (key <> id), coalesce(max(key), -1) FROM node"
        )
        return pairs, int(changed), int(largest)

    def ids_of(self, name: str) -> Array:
        """Ids of the keys in the first column of a text file without a header.

        Parameters
        ----------
        name
            The file.

        Returns
        -------
        Array
            (n,) int64.

        Raises
        ------
        DataError
            A key is unknown.
        """
        scan = self._tables.scan(Table((name,), header=False), "splits")
        column = quoted(next(iter(self._tables.columns(scan))))
        keys = f"(SELECT {self._as_key(column, 'VARCHAR')} AS key, {column} AS raw FROM {scan})"
        for (raw,) in self._tables.fetch(
            f"SELECT min(raw) FROM {keys} k ANTI JOIN node USING (key) HAVING count(*) > 0"
        ):
            raise DataError(
                f"{name}: {raw!r} is not the key of a node", "Give keys of the node table."
            )
        ids = self._tables.stream(
            f"SELECT id FROM {keys} k JOIN node USING (key) ORDER BY id", "splits"
        )
        return self._tables.numbers(name, ids)


def _chosen(rows: Array, flags: Array, count: int) -> Array:
    """Rows whose flag is set, `count` of them."""
    scratch, done = rows.workspace.scratch(), 0
    for piece in rows.pieces():
        chosen = np.empty(len(piece), np.bool_)
        flags.read_into(chosen, done)
        scratch.append(piece[chosen])
        done += len(piece)
    return scratch.array(rows.where, (count, rows.width), rows.dtype)
