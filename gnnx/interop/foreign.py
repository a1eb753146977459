"""Graphs of PyTorch Geometric, SciPy and NetworkX, by the attributes that they show.

None of these packages is imported: an object that looks like theirs is taken. Letters: N nodes,
E edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnx.errors import DataError
from gnnx.interop.tables import InMemoryGraph, SparseTable

_EDGE = {"edge_weight": "weight", "edge_attr": "attr", "edge_time": "time"}
_PYG = {"x", "y", "edge_index", "num_nodes", *_EDGE}


def from_pyg(data: Any) -> InMemoryGraph:
    """Take a `torch_geometric.data.Data`.

    Parameters
    ----------
    data
        With ``edge_index``, and, where there are any, ``x``, ``y``, masks, ``edge_weight``,
        ``edge_attr`` and ``edge_time``.

    Returns
    -------
    InMemoryGraph
        Its tensors, not copied; of several masks a split the first.

    Raises
    ------
    DataError
        It has no ``edge_index``.
    """
    fields = {name: data[name] for name in _names(data)}
    if fields.get("edge_index") is None:
        raise DataError("Data without edge_index", "Give it one, (2, E); adj_t is not read.")
    arrays = {name: _numpy(value) for name, value in fields.items() if hasattr(value, "numpy")}
    num_nodes = fields.get("num_nodes") or getattr(data, "num_nodes", None)
    if num_nodes is None:
        num_nodes = max((len(arrays[name]) for name in ("x", "y") if name in arrays), default=None)
    if num_nodes is None:
        raise DataError("Data without num_nodes, x or y", "Set data.num_nodes.")
    splits, notes = {}, []
    for split in ("train", "val", "test"):
        mask = arrays.get(f"{split}_mask")
        if mask is not None:
            splits[split] = mask if mask.ndim == 1 else np.ascontiguousarray(mask[:, 0])
    known = _PYG | {f"{split}_mask" for split in ("train", "val", "test")}
    notes += [f"data.{name}: not taken over" for name in sorted(set(fields) - known)]
    return InMemoryGraph(
        arrays["edge_index"],
        int(num_nodes),
        arrays.get("x"),
        arrays.get("y"),
        splits,
        values={kind: arrays[name] for name, kind in _EDGE.items() if name in arrays},
        notes=notes,
        name="data",
    )


def _names(data: Any) -> list[str]:
    keys = data.keys
    return [str(name) for name in (keys() if callable(keys) else keys)]


def _numpy(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else tensor.numpy()


def from_scipy(matrix: Any, *, features: Any = None, labels: Any = None) -> InMemoryGraph:
    """Take a sparse adjacency matrix of SciPy, of any format; values other than 1 are weights.

    Parameters
    ----------
    matrix
        (N, N). Row = source, column = destination.
    features
        (N, F), an array or sparse.
    labels
        (N,) a class, -1 or NaN for none.

    Returns
    -------
    InMemoryGraph
        With an edge for each stored entry.

    Raises
    ------
    DataError
        The matrix is not square.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"an adjacency matrix of shape {matrix.shape}", "Give a square one.")
    entries = matrix.tocoo()
    edges = np.stack([entries.row, entries.col]).astype(np.int64)
    values = {"weight": np.asarray(entries.data)} if np.any(entries.data != 1) else {}
    if hasattr(features, "tocsr"):
        rows = features.tocsr()
        features = SparseTable(rows.indptr, rows.indices, rows.data, rows.shape[1])
    elif features is not None:
        features = np.asarray(features)
    labels = None if labels is None else np.asarray(labels)
    return InMemoryGraph(edges, matrix.shape[0], features, labels, values=values, name="matrix")


def from_networkx(
    graph: Any,
    *,
    features: str | None = None,
    label: str | None = None,
    weight: str | None = None,
) -> InMemoryGraph:
    """Take a graph of NetworkX; its nodes are the keys.

    Parameters
    ----------
    graph
        Directed or not; an undirected edge becomes two.
    features
        Attribute of the nodes with a number or a list of numbers.
    label
        Attribute of the nodes with a class.
    weight
        Attribute of the edges with a number.

    Returns
    -------
    InMemoryGraph
        With nodes in the graph's order.

    Raises
    ------
    DataError
        A node lacks the attribute.
    """
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    pairs = [(number[a], number[b]) for a, b in graph.edges()]
    weights = [] if weight is None else _edge_attribute(graph, weight)
    if not graph.is_directed():
        weights += [w for w, (a, b) in zip(weights, pairs, strict=False) if a != b]
        pairs += [(b, a) for a, b in pairs if a != b]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    keys = nodes if all(type(node) is int for node in nodes) else [str(node) for node in nodes]
    return InMemoryGraph(
        edges,
        len(nodes),
        None if features is None else np.array(_attribute(graph, features), np.float32),
        None if label is None else np.array(_attribute(graph, label), np.int64),
        keys=None if keys == list(range(len(nodes))) else keys,
        values={} if weight is None else {"weight": np.array(weights, np.float32)},
        name="graph",
    )


def _edge_attribute(graph: Any, name: str) -> list[Any]:
    values = []
    for src, dst, attributes in graph.edges(data=True):
        if attributes.get(name) is None:
            raise DataError(f"edge {src!r} to {dst!r} has no {name!r}", "Give it to every edge.")
        values.append(attributes[name])
    return values


def _attribute(graph: Any, name: str) -> list[Any]:
    values = [attributes.get(name) for _, attributes in graph.nodes(data=True)]
    if None in values:
        node = list(graph.nodes)[values.index(None)]
        raise DataError(f"node {node!r} has no {name!r}", "Give every node this attribute.")
    return values
