"""Slow, obvious answers that the tests hold gnnx against; nothing here imports gnnx."""

import numpy as np

# Operators and layers: loops over rows, edges and columns.


def random_csr(seed, num_dst, num_src, num_edges):
    """Multigraph with empty rows, hubs, duplicates, loops and unsorted columns, int64 arrays."""
    rng = np.random.default_rng(seed)
    num_edges = num_edges if num_dst else 0
    # squared draws crowd at the low ids: a few hubs, many rows without an edge
    dst = np.sort((rng.random(num_edges) ** 2 * num_dst).astype(np.int64))
    src = (rng.random(num_edges) ** 2 * num_src).astype(np.int64)
    indptr = np.zeros(num_dst + 1, np.int64)
    np.add.at(indptr, dst + 1, 1)
    return np.cumsum(indptr), src


def transpose(indptr, indices, num_src):
    """Row by row: sources in order, each with its destinations and edge positions."""
    rows = [[] for _ in range(num_src)]
    for d in range(len(indptr) - 1):
        for e in range(indptr[d], indptr[d + 1]):
            rows[indices[e]].append((d, e))
    edges = [pair for row in rows for pair in row]
    t_indptr = np.cumsum([0] + [len(row) for row in rows])
    flat = np.array(edges, np.int64).reshape(-1, 2)
    return t_indptr, flat[:, 0], flat[:, 1]
