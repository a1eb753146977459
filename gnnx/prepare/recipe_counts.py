"""How much a graph without types holds that a recipe describes; nothing is written.

Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gnnx.prepare.columns import JSON_FACTOR
from gnnx.prepare.counting import EdgeCounts, NodeCounts, Reading, pair_bytes
from gnnx.prepare.head import head_of
from gnnx.prepare.recipe import Table
from gnnx.prepare.splits import NAMES
from gnnx.prepare.table_counts import count_edges, count_ends, count_nodes, count_table
from gnnx.prepare.tables import matches

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.prepare.recipe import Recipe

_LENGTH_BYTES, _ID_BYTES = 4, 8  # of a key in a list of keys
_JSON_LIST = re.compile(rb":\s*\[([^\]]*)\]")


def count_recipe(recipe: Recipe, root: Path) -> tuple[NodeCounts, EdgeCounts]:
    """Count what the tables and files of a recipe hold.

    Parameters
    ----------
    recipe
        What is where.
    root
        Where its relative paths begin.

    Returns
    -------
    tuple
        Of the nodes, whose number is an estimate where there is no table of them, and of the edges.

    Raises
    ------
    DataError
        A file or a column is not there; the message names the key of the recipe.
    """
    if recipe.nodes is None:
        nodes = count_ends(recipe.edges, root)
    else:
        nodes = count_nodes(recipe.nodes, root)
    edges = count_edges(recipe.edges, root, pair_bytes(nodes.count))
    edges.reading += _looked_up(nodes, edges)
    files = [getattr(recipe.splits, name) for name in NAMES] if recipe.splits else []
    for table in (Table((file,), header=False) for file in files if file is not None):
        keys = count_table(table, root, "splits")
        nodes.reading += Reading(
            table_bytes=keys.num_bytes,
            table_rows=keys.num_rows,
            scratch_bytes=_ID_BYTES * keys.num_rows,
        )
    nodes.has_splits = True  # they are drawn where there are none
    if recipe.features is not None and recipe.features.file.endswith(".json"):
        _take_json(nodes, matches(root, recipe.features.file)[0])
    elif recipe.features is not None:
        nodes.take_features(root / recipe.features.file)
    return nodes, edges


def _looked_up(nodes: NodeCounts, edges: EdgeCounts) -> Reading:
    """Keys of the ends of edges, and of the nodes, in buckets; the ids that are found in these."""
    mean = edges.key_bytes if nodes.has_text_keys else _ID_BYTES
    end = _LENGTH_BYTES + mean + 1  # and the number of its bucket
    node = _LENGTH_BYTES + nodes.key_bytes + 1 + _ID_BYTES
    found = pair_bytes(nodes.count) + 1  # and whether both are known
    return Reading(
        keys=2 * edges.count,
        scratch_bytes=round(edges.count * (2 * end + found) + nodes.count * node),
    )


def _take_json(nodes: NodeCounts, path: Path) -> None:
    """Count lists of the columns with a one, from the first of them."""
    head = head_of(path)
    lists = [text.split(b",") for text in _JSON_LIST.findall(head.text)]
    columns = [int(column) for ones in lists for column in ones if column.strip().isdigit()]
    size = path.stat().st_size
    ones = round(len(columns) * size / max(1, head.taken))
    nodes.features = nodes.count, max(columns, default=-1) + 1, 1
    nodes.reading += Reading(
        text_bytes=size,
        host_bytes=JSON_FACTOR * size,
        scratch_bytes=8 * (nodes.count + 1 + ones),
        exact=head.exact,
    )
