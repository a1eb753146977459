"""Slow, obvious answers that the tests hold gnnx against; nothing here imports gnnx."""

import itertools
import math

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


def spmm(indptr, indices, x, weight=None, reduce="sum"):
    """Row by row in float64: reduced messages, and for max and min the first edge that has them."""
    out = np.zeros((len(indptr) - 1, x.shape[1]))
    arg = np.full(out.shape, -1)
    for d in range(len(out)):
        edges = range(indptr[d], indptr[d + 1])
        for f in range(x.shape[1]):
            values = [
                float(x[indices[e], f]) * (1.0 if weight is None else float(weight[e]))
                for e in edges
            ]
            if not values:
                continue
            if reduce in {"max", "min"}:
                out[d, f] = max(values) if reduce == "max" else min(values)
                arg[d, f] = edges[values.index(out[d, f])]
            else:
                out[d, f] = sum(values) / (len(values) if reduce == "mean" else 1)
    return out, arg


def spmm_gradients(indptr, indices, x, weight, reduce, grad):
    """Gradients of sum(grad * spmm(...)) by x and by weight (ones where None), edge by edge."""
    w = np.ones(len(indices)) if weight is None else weight
    _, arg = spmm(indptr, indices, x, weight, reduce)
    dx, dw = np.zeros(x.shape), np.zeros(len(indices))
    for d in range(len(indptr) - 1):
        degree = indptr[d + 1] - indptr[d]
        for e in range(indptr[d], indptr[d + 1]):
            for f in range(x.shape[1]):
                if reduce in {"max", "min"}:
                    share = grad[d, f] if arg[d, f] == e else 0.0
                else:
                    share = grad[d, f] / (degree if reduce == "mean" else 1)
                dx[indices[e], f] += share * w[e]
                dw[e] += share * x[indices[e], f]
    return dx, dw


def softmax(values):
    """Of a list of floats."""
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def edge_softmax(indptr, logits):
    """Row by row and head by head in float64."""
    out = np.zeros(logits.shape)
    for d in range(len(indptr) - 1):
        for h in range(logits.shape[1]):
            row = slice(indptr[d], indptr[d + 1])
            if indptr[d] < indptr[d + 1]:
                out[row, h] = softmax([float(z) for z in logits[row, h]])
    return out


def attention(indptr, indices, x, a_dst, a_src, slope):
    """Edge by edge in float64: softmax of leaky scores over a row, weighted sum of its sources."""
    scores = np.zeros((len(indices), x.shape[1]))
    for d in range(len(indptr) - 1):
        for e in range(indptr[d], indptr[d + 1]):
            score = a_dst[d].astype(np.float64) + a_src[indices[e]]
            scores[e] = np.where(score > 0, score, slope * score)
    weights = edge_softmax(indptr, scores)
    out = np.zeros((len(indptr) - 1, *x.shape[1:]))
    for d in range(len(out)):
        for e in range(indptr[d], indptr[d + 1]):
            out[d] += weights[e][:, None] * x[indices[e]]
    return out


def edge_scores(indptr, indices, x_dst, x_src, att, slope, grad):
    """Scores of GATv2 and their gradients by the three, element by element."""
    num_heads, width = att.shape
    out = np.zeros((len(indices), num_heads))
    d_dst, d_src, d_att = np.zeros_like(x_dst), np.zeros_like(x_src), np.zeros_like(att)
    for d in range(len(indptr) - 1):
        for e in range(indptr[d], indptr[d + 1]):
            s = indices[e]
            for h in range(num_heads):
                for f in range(width):
                    both = x_dst[d, h, f] + x_src[s, h, f]
                    steep = 1.0 if both > 0 else slope
                    out[e, h] += att[h, f] * steep * both
                    d_dst[d, h, f] += grad[e, h] * att[h, f] * steep
                    d_src[s, h, f] += grad[e, h] * att[h, f] * steep
                    d_att[h, f] += grad[e, h] * steep * both
    return out, d_dst, d_src, d_att


def edge_softmax_gradient(indptr, p, grad):
    """Gradient of sum(grad * p) by the scores that p is the softmax of."""
    out = np.zeros(p.shape)
    for begin, end in itertools.pairwise(indptr):
        for h in range(p.shape[1]):
            mean = p[begin:end, h] @ grad[begin:end, h]
            out[begin:end, h] = p[begin:end, h] * (grad[begin:end, h] - mean)
    return out


def _mix(value):
    """SplitMix64's finaliser."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) % 2**64
    return value ^ value >> 31


def dropout(x, row_id, p, key):
    """Element by element, as `gnnx.ops.dropout` defines it."""
    gamma = 0x9E3779B97F4A7C15
    state = 0
    for part in key:
        state = _mix(state ^ _mix((part + 1) * gamma % 2**64))
    state = _mix(state ^ int.from_bytes(b"dropout\0", "big"))
    out = np.zeros(x.shape)
    for r, name in enumerate(row_id):
        row = _mix(state ^ int(name) % 2**64)
        for f in range(x.shape[1]):
            if _mix((row + (f + 1) * gamma) % 2**64) >> 32 >= round(p * 2**32):
                out[r, f] = float(x[r, f]) / (1 - p)
    return out


def adjacency(indptr, indices, num_src):
    """Dense (D, S) counts of parallel edges."""
    out = np.zeros((len(indptr) - 1, num_src))
    for d in range(len(out)):
        for e in range(indptr[d], indptr[d + 1]):
            out[d, indices[e]] += 1
    return out


def gcn_matrix(adjacency):
    """D^-1/2 (A + I) D^-1/2, where I has no entry for nodes that A gives a loop."""
    filled = adjacency + np.diag(np.diag(adjacency) == 0)
    scale = filled.sum(1) ** -0.5
    return scale[:, None] * filled * scale[None, :]


def mean_matrix(adjacency):
    """Rows of A divided by their degree; rows of zeros stay."""
    return adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)


# Cache and loader: probabilities edge by edge, draws edge by edge.


def expected_access(indptr, indices, seeds, fanouts, batch_size):
    """P(node is in a batch): products over edges, in float64, one row after another."""
    num_nodes = len(indptr) - 1
    at_first = np.zeros(num_nodes)
    at_first[seeds] = min(1.0, batch_size / max(1, len(seeds)))
    reached, drawn = at_first, np.zeros(num_nodes)
    for fanout in fanouts:
        spared = 1.0 - at_first
        for v in range(num_nodes):
            row = indices[indptr[v] : indptr[v + 1]]
            share = 1.0 if fanout < 0 else min(1.0, fanout / max(1, len(row)))
            drawn[v] += (reached[v] - drawn[v]) * share
            for u in row:
                spared[u] *= 1.0 - drawn[v]
        reached = 1.0 - spared
    return reached


def typed_access(graphs, counts, seed_type, seeds, fanouts, batch_size):
    """P(node is in a batch) of a typed graph by node type, edge by edge as `expected_access`."""
    first = {name: np.zeros(count) for name, count in counts.items()}
    first[seed_type][seeds] = min(1.0, batch_size / max(1, len(seeds)))
    reached = first
    drawn = {name: np.zeros(counts[name[2]]) for name in graphs}
    for layer in range(len(next(iter(fanouts.values())))):
        spared = {name: 1.0 - at_first for name, at_first in first.items()}
        for name, (indptr, indices) in graphs.items():
            rows = [indices[begin:end] for begin, end in itertools.pairwise(indptr)]
            fanout = fanouts[name][layer]
            for v, row in enumerate(rows):
                share = 1.0 if fanout < 0 else min(1.0, fanout / max(1, len(row)))
                drawn[name][v] += (reached[name[2]][v] - drawn[name][v]) * share
                for u in row:
                    spared[name[0]][u] *= 1.0 - drawn[name][v]
        reached = {name: 1.0 - left for name, left in spared.items()}
    return reached


def sampled_nodes(indptr, indices, seeds, fanouts, rng):
    """Ids of a batch: each layer draws distinct in-edges of every node reached so far."""
    reached = set(np.asarray(seeds).tolist())
    for fanout in fanouts:
        for v in sorted(reached):
            row = indices[indptr[v] : indptr[v + 1]]
            if 0 <= fanout < len(row):
                row = rng.choice(row, fanout, replace=False)
            reached.update(row.tolist())
    return np.array(sorted(reached), np.int64)


# Random draws and samples, in Python's integers.

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def mix(value):
    """Finaliser of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def fold(key):
    """Digest of a key's parts, taken in order."""
    state = 0
    for part in key:
        state = mix(state ^ mix(((part + 1) * _GAMMA) & _MASK))
    return state


def permuted(position, size, state):
    """Image under a keyed permutation of [0, size): a Feistel network, walked until inside."""
    half = 1
    while 4**half < size:
        half += 1
    while True:
        left, right = position >> half, position % 2**half
        for turn in range(6):
            turned = mix(right ^ ((state + turn * _GAMMA) & _MASK)) % 2**half
            left, right = right, left ^ turned
        position = left * 2**half + right
        if position < size:
            return position


def drawn(degree, fanout, key, node):
    """Which of a node's edges a sample takes, ascending."""
    if fanout == -1 or degree <= fanout:
        return list(range(degree))
    bits = mix(fold(key) ^ mix(node))
    if fanout > 512:
        return sorted(permuted(j, degree, bits) for j in range(fanout))
    picks = set()
    for j in range(fanout):
        last = degree - fanout + j
        high_word = mix((bits + (j + 1) * _GAMMA) & _MASK) >> 32
        pick = high_word * (last + 1) >> 32
        picks.add(last if pick in picks else pick)
    return sorted(picks)


def sample(indptr, indices, seeds, fanouts, key):
    """Blocks of a batch, outermost first, as (indptr, indices, src_id, e_id)."""
    nodes, blocks = [int(seed) for seed in seeds], []
    local = {node: i for i, node in enumerate(nodes)}
    for layer, fanout in enumerate(fanouts):
        starts, row, e_id = [0], [], []
        for node in list(nodes):
            begin, end = int(indptr[node]), int(indptr[node + 1])
            for offset in drawn(end - begin, fanout, (*key[:3], layer), node):
                source = int(indices[begin + offset])
                if source not in local:
                    local[source] = len(nodes)
                    nodes.append(source)
                row.append(local[source])
                e_id.append(begin + offset)
            starts.append(len(row))
        blocks.append((starts, row, list(nodes), e_id))
    return blocks[::-1]


def hetero_sample(graphs, node_types, seed_type, seeds, fanouts, key):
    """Blocks of a batch of a typed graph, outermost first: (by edge type, ids by node type, D).

    `graphs` has (indptr, indices) by edge type; edge types are taken in ascending order, and the
    layer of the e-th of them is layer * (number of types) + e in the key of its draws.
    """
    nodes = {name: [] for name in node_types}
    nodes[seed_type] = [int(seed) for seed in seeds]
    blocks = []
    for layer in range(len(next(iter(fanouts.values())))):
        reached = {name: list(ids) for name, ids in nodes.items()}
        edges = {}
        for e, edge_type in enumerate(sorted(graphs)):
            (src, _, dst), (indptr, indices) = edge_type, graphs[edge_type]
            draws = (*key[:3], layer * len(graphs) + e)
            fanout = fanouts[edge_type][layer]
            picked = [
                [int(indptr[v]) + i for i in drawn(indptr[v + 1] - indptr[v], fanout, draws, v)]
                for v in map(int, reached[dst])
            ]
            e_id = [position for row in picked for position in row]
            for source in (int(indices[position]) for position in e_id):
                if source not in nodes[src]:
                    nodes[src].append(source)
            row = [nodes[src].index(indices[position]) for position in e_id]
            starts = np.cumsum([0] + [len(row) for row in picked]).tolist()
            edges[edge_type] = (starts, row, e_id)
        ids = {name: list(found) for name, found in nodes.items()}
        blocks.append((edges, ids, {name: len(found) for name, found in reached.items()}))
    return blocks[::-1]


def edge_union(blocks):
    """Pairs (source, destination) of each edge once, blocks given outermost first.

    A block is (indptr, indices, position of each edge in the CSR); the innermost one's come first.
    """
    seen, pairs = set(), []
    for indptr, indices, positions in reversed(blocks):
        for d in range(len(indptr) - 1):
            for e in range(indptr[d], indptr[d + 1]):
                if positions[e] not in seen:
                    seen.add(positions[e])
                    pairs.append([indices[e], d])
    return pairs


# Preparation: edges as pairs of Python integers, statistics of graphs.


def csr_of_edges(src, dst, num_nodes, undirected=False, self_loops="keep", duplicates="keep"):
    """Rows of in-edges, sorted, of edges after the rules, and what became of the edges."""
    edges = list(zip(map(int, src), map(int, dst), strict=True))
    kept = [edge for edge in edges if self_loops != "drop" or edge[0] != edge[1]]
    present = set(kept)
    counts = {
        "edges_read": len(edges),
        "self_loops": sum(s == d for s, d in edges),
        "duplicates": len(kept) - len(present),
        "isolated": num_nodes - len({node for edge in edges for node in edge}),
    }
    if duplicates == "drop":
        kept = list(present)
    counts["dropped"] = len(edges) - len(kept)
    reverse = {(d, s) for s, d in present} - present if undirected else set()
    loops = {(v, v) for v in range(num_nodes)} - present if self_loops == "add" else set()
    kept = [*kept, *reverse, *loops]
    counts |= {"reversed_added": len(reverse), "loops_added": len(loops)}
    counts["edges_stored"] = len(kept)
    rows = [sorted(s for s, d in kept if d == row) for row in range(num_nodes)]
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.array([source for row in rows for source in row], np.int64)
    return indptr, indices, sorted(s for s, d in set(kept) if s == d), counts


def ridge_accuracy(x, y, train, test, num_classes):
    """Accuracy on `test` of a linear model fitted on `train` by least squares to one-hot labels."""
    ones = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    gram = ones[train].T @ ones[train] + np.eye(ones.shape[1])
    weights = np.linalg.solve(gram, ones[train].T @ np.eye(num_classes)[y[train]])
    return float(((ones[test] @ weights).argmax(1) == y[test]).mean())


def neighbour_mean(indptr, indices, x):
    """Mean of each row's sources, 0 for an empty row."""
    import scipy.sparse  # only here: `make gpu` uses the loops, and brings no scipy

    ones = np.ones(len(indices), x.dtype)
    rows = scipy.sparse.csr_array((ones, indices, indptr), shape=(len(x), len(x)))
    return (rows @ x) / np.maximum(np.diff(indptr), 1)[:, None]


# Parts: what they read, edge by edge.


def part_counts(indptr, indices, part, num_parts):
    """Cut, and for each part its nodes, its in-edges and the set of foreign nodes that it reads."""
    cut, nodes, edges = 0, [0] * num_parts, [0] * num_parts
    halos = [set() for _ in range(num_parts)]
    for v in range(len(indptr) - 1):
        p = int(part[v])
        nodes[p] += 1
        for e in range(indptr[v], indptr[v + 1]):
            edges[p] += 1
            if part[indices[e]] != p:
                cut += 1
                halos[p].add(int(indices[e]))
    return cut, nodes, edges, halos


# Caching: loops over batches and rows.


def belady_fetches(batches, windows, pinned, capacity):
    """Rows fetched by Belady's rule, batch by batch, seeing the batches of one window ahead.

    `windows` are (begin, end) in order; `capacity` rows may be held, the pinned ones among them. A
    row goes for another whose next use in the window is earlier; without one, it is as good as any.
    """
    held, fetched = set(), 0
    for begin, end in windows:
        uses = {}
        for i in range(begin, end):
            for row in batches[i]:
                uses.setdefault(row, []).append(i)
        for i in range(begin, end):

            def next_use(row, uses=uses, now=i):
                return next((use for use in uses.get(row, []) if use > now), len(batches))

            for row in set(batches[i]) - held - pinned:
                fetched += 1
                if len(held) < capacity - len(pinned):
                    held.add(row)
                    continue
                worst = max(held - set(batches[i]), key=next_use, default=None)
                if worst is not None and next_use(row) < next_use(worst):
                    held.remove(worst)
                    held.add(row)
    return fetched


def least_fetches(batches, capacity, held=(), spare=0):
    """Rows that any cache fetches; at first it has those held, and some others that it chooses."""

    def nearest(rows, now, count):
        def next_use(row):
            later = (j for j in range(now, len(batches)) if row in batches[j])
            return next(later, len(batches))

        return set(sorted(rows, key=next_use)[:count])

    others = set().union(*batches) - set(held)
    held = nearest({*held, *nearest(others, 0, spare)}, 0, capacity)
    fetched = 0
    for i, batch in enumerate(batches):
        fetched += len(set(batch) - held)
        held = nearest(held | set(batch), i + 1, capacity)
    return fetched


def roc_auc(scores, positive):
    """Share of pairs in order, pair by pair; a tie is half a pair."""
    above = [s for s, p in zip(scores, positive, strict=True) if p]
    below = [s for s, p in zip(scores, positive, strict=True) if not p]
    if not above or not below:
        return None
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in above for b in below]
    return sum(pairs) / len(pairs)


def average_precision(scores, positive):
    """Precision at every threshold times the recall won there."""
    total, area, before = sum(map(bool, positive)), 0.0, 0.0
    if not total:
        return None
    for threshold in sorted(set(scores), reverse=True):
        taken = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        recall = sum(map(bool, taken)) / total
        area += (recall - before) * sum(map(bool, taken)) / len(taken)
        before = recall
    return area


def f1(predicted, right):
    both = np.sum(predicted & right)
    return 2 * both / max(1, np.sum(predicted) + np.sum(right))
