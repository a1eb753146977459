"""Inputs whose edges name nodes by keys: tables described by a recipe, and lists of sparse ids.

Letters: N nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.columns import NodeColumns
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.keys import NodeKeys
from gnnx.prepare.report import EXAMPLES
from gnnx.prepare.sources import Reader, Source
from gnnx.prepare.splits import NAMES
from gnnx.prepare.tables import Tables
from gnnx.prepare.values import ArrayRows

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.recipe import NodeTable, Recipe
    from gnnx.prepare.report import Report
    from gnnx.threads import Progress

LARGEST_KEY = 10**18


def read_tables(
    recipe: Recipe,
    root: Path,
    reader: Reader,
    workspace: Workspace,
    progress: Progress | None = None,
) -> Source:
    """Read the tables of a recipe; nodes get ids in the order of the node table.

    Without a node table the nodes are those that edges name, in ascending order of their keys;
    without a key column edges give the row of the node table.

    Parameters
    ----------
    recipe
        What is where.
    root
        Where its relative paths begin.
    reader
        Reads a features file.
    workspace
        Takes what is read.
    progress
        Told how far it is.

    Returns
    -------
    Source
        All of it as arrays.
    """
    nodes, edges = recipe.nodes, recipe.edges
    with Tables(workspace, root, progress) as tables:
        keys, columns = NodeKeys(tables), NodeColumns(tables)
        where = edges.files[0]
        keyed = nodes is None or nodes.key is not None
        if nodes is not None and nodes.key is not None:
            keys.number_nodes(nodes)
        elif nodes is not None:
            keys.number_rows(nodes)
        scan, src, dst = keys.ends_of(edges, numbered=nodes is not None)
        relations = keys.relation_names(edges)
        ends, values = keys.read_ends(scan, src, dst, where, keys.values_of(edges))
        if nodes is None:
            keys.number_ends(ends)
        pairs, unknown, values = keys.edges(ends, values, where)
        places = keys.unknown_rows(edges, src, dst, EXAMPLES) if unknown else []
        if unknown and edges.unknown == "refuse":
            place, key = places[0].split(": ", 1)
            raise DataError(
                f"{where}: {unknown} of {len(pairs) + unknown} edges name nodes that are not in "
                f"the node table, such as {key} ({place})",
                'Add the nodes, or leave these edges out with unknown = "drop".',
            )
        found = Source(PairEdges(pairs, "pairs"), unknown_ends=unknown, unknown_at=places)
        found.values = {name: ArrayRows(array) for name, array in values.items()}
        found.edge_arrays = relations
        num_nodes = keys.num_nodes
        found.num_nodes.append((where if nodes is None else nodes.files[0], num_nodes))
        if keyed:
            found.arrays |= keys.key_arrays(ordered=nodes is None)
        if recipe.splits is not None:
            files = ((name, getattr(recipe.splits, name)) for name in NAMES)
            found.splits = {name: keys.ids_of(file) for name, file in files if file is not None}
        if recipe.features is not None and recipe.features.file.endswith(".json"):
            found.features = columns.json_features(recipe.features, num_nodes)
        elif recipe.features is not None:
            found.features = reader.rows(root / recipe.features.file, np.float32)
        if nodes is not None:
            _read_columns(nodes, columns, found)
    return found


def _read_columns(nodes: NodeTable, columns: NodeColumns, found: Source) -> None:
    if nodes.features:
        found.features = columns.features(nodes)
    if nodes.label is not None:
        arrays = columns.labels(nodes)
        found.labels = arrays.pop("y")
        found.arrays |= arrays
    if nodes.labels:
        found.labels, arrays = columns.several_labels(nodes)
        found.arrays |= arrays
    if nodes.tags is not None:
        found.labels, arrays = columns.tags(nodes)
        found.arrays |= arrays
    found.splits |= columns.splits(nodes)


def renumber(
    found: Source,
    stated: list[tuple[str, int]],
    report: Report,
    workspace: Workspace,
    progress: Progress | None = None,
) -> None:
    """Take the ids of edges for keys, and number those that occur from 0 on, ascending.

    Parameters
    ----------
    found
        Of edges only; gets new edges and, where an id changes, the keys.
    stated
        Who says how many nodes there are; nobody may.
    report
        Told how many nodes got another id, and how many ids are none.
    workspace
        Takes what is read.
    progress
        Told how far it is.

    Raises
    ------
    UsageError
        There are tables with a row a node, or splits: whose they are is not known.
    """
    if stated or found.splits:
        name = stated[0][0] if stated else next(iter(found.splits.values())).where
        raise UsageError(
            f"--remap and {name}: which node is which row is not known any more",
            "Leave out --remap, or write a recipe with a node table that has the keys.",
        )
    with Tables(workspace, workspace.folder, progress) as tables:
        keys = NodeKeys(tables)
        pairs, changed, largest = keys.renumbered(found.edges.load(LARGEST_KEY))
        found.num_nodes.append((found.edges.where, keys.num_nodes))
        found.edges = PairEdges(pairs, "pairs")
        report.remapped, report.id_gaps = changed, largest + 1 - keys.num_nodes
        if changed:
            found.arrays |= keys.key_arrays(ordered=True)
            report.examples["id_gaps"] = [f"the largest is {largest}"]
