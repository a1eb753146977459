"""Loops of the community graph: node order, degrees, sources, labels, features.

Letters: N nodes, K communities, C classes, F feature width. All floating-point work is of sums,
products, quotients and square roots, which IEEE 754 rounds in one way, so that a seed gives
the same bytes on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx.random import GAMMA, below, mix
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOOR = 0.1  # of the fourth root of a node's place in its community: it bounds the degrees
INSIDE = 0.7  # share of edges from a node's own community
OWN_CLASS = 0.9  # share of nodes whose label is their community's class
_ROUNDS = 16  # of drawing again what was drawn twice
_FLOOR_4 = FLOOR**4


class Plan(NamedTuple):
    """Where nodes stand: what every draw of a graph depends on."""

    num_nodes: int
    num_communities: int
    half_bits: int
    """Positions have at most twice as many."""
    keys: NDArray[np.uint64]
    """Of the permutation of the nodes, a round each."""


@kernel
def node_at(position: Any, plan: Any) -> Any:
    """Image of a position under a keyed permutation of [0, N).

    A Feistel network whose rounds are one `mix` each: node order has to look random, no more.
    """
    half = np.uint64(plan.half_bits)
    mask = (np.uint64(1) << half) - np.uint64(1)
    value = np.uint64(position)
    while True:
        left, right = value >> half, value & mask
        for key in plan.keys:
            left, right = right, left ^ (mix(right + key) & mask)
        value = (left << half) | right
        if value < np.uint64(plan.num_nodes):
            return np.int64(value)


@kernel
def position_of(node: Any, plan: Any) -> Any:
    """Inverse of `node_at`."""
    half = np.uint64(plan.half_bits)
    mask = (np.uint64(1) << half) - np.uint64(1)
    value = np.uint64(node)
    while True:
        left, right = value >> half, value & mask
        for i in range(len(plan.keys) - 1, -1, -1):
            left, right = right ^ (mix(left + plan.keys[i]) & mask), left
        value = (left << half) | right
        if value < np.uint64(plan.num_nodes):
            return np.int64(value)


@inlined
def _community_of(position: Any, plan: Any) -> Any:
    """Communities are equal ranges of positions: c begins at c·N // K."""
    return ((position + 1) * plan.num_communities - 1) // plan.num_nodes


@inlined
def _unit(bits: Any) -> Any:
    """Turn the upper 32 bits into a number in [0, 1)."""
    return np.float64(bits >> np.uint64(32)) * 2.0**-32


@kernel
def _weight(node: Any, plan: Any) -> Any:
    """Popularity x^(-3/4) of a node, x in [FLOOR^4, 1] its place in its community."""
    position = position_of(node, plan)
    community = _community_of(position, plan)
    first = community * plan.num_nodes // plan.num_communities
    size = (community + 1) * plan.num_nodes // plan.num_communities - first
    x = _FLOOR_4 + (1 - _FLOOR_4) * (position - first + 0.5) / size
    return 1 / (np.sqrt(x) * np.sqrt(np.sqrt(x)))


@kernel
def sum_weights(begin: Any, end: Any, plan: Any) -> Any:
    """Sum of the popularity of some nodes, in their order."""
    total = 0.0
    for node in range(begin, end):
        total += _weight(node, plan)
    return total


@kernel
def end_rows(
    begin: Any,
    before: Any,
    total: Any,
    num_edges: Any,
    plan: Any,
    ends: Any,
) -> None:
    """Set ends of rows, from `begin` on: E times the share of popularity up to each, rounded."""
    sum_here = 0.0
    for i in range(len(ends)):
        sum_here += _weight(begin + i, plan)
        ends[i] = np.int64(num_edges * ((before + sum_here) / total))


@kernel
def _draw_source(bits: Any, community: Any, plan: Any) -> Any:
    if plan.num_communities > 1 and _unit(mix(bits)) >= INSIDE:
        other = below(mix(bits + np.uint64(1)), plan.num_communities - 1)
        community = (community + 1 + other) % plan.num_communities
    first = community * plan.num_nodes // plan.num_communities
    size = (community + 1) * plan.num_nodes // plan.num_communities - first
    root = FLOOR + (1 - FLOOR) * _unit(bits)
    x = (root * root * (root * root) - _FLOOR_4) / (1 - _FLOOR_4)
    return node_at(first + min(np.int64(size * x), size - 1), plan)


@kernel
def _draw_row(node: Any, plan: Any, state: Any, row: Any) -> None:
    """Fill a row with different sources, other than the node itself, ascending."""
    position = position_of(node, plan)
    community = _community_of(position, plan)
    filled = 0
    for _ in range(_ROUNDS):
        for i in range(filled, len(row)):
            state += np.uint64(GAMMA)
            row[i] = _draw_source(mix(state), community, plan)
        row.sort()
        filled, last = 0, np.int64(-1)
        for i in range(len(row)):
            source = np.int64(row[i])
            if source not in (last, node):
                row[filled] = last = source
                filled += 1
        if filled == len(row):
            return
    for i in range(filled, len(row)):  # a hub of a small graph: its sources repeat
        state += np.uint64(GAMMA)
        source = np.int64(_unit(mix(state)) * (plan.num_nodes - 1))
        row[i] = source + (source >= node)
    row.sort()


@kernel
def draw_rows(
    first_row: Any,
    starts: Any,
    begin: Any,
    end: Any,
    plan: Any,
    key: Any,
    sources: Any,
) -> None:
    """Fill rows [begin, end) of a piece that begins at `first_row` and starts[0]."""
    for i in range(begin, end):
        if starts[i] < starts[i + 1]:
            row = sources[starts[i] - starts[0] : starts[i + 1] - starts[0]]
            node = first_row + i
            state = mix(key ^ mix(np.uint64(node)))
            _draw_row(node, plan, state, row)


@kernel
def draw_labels(first: Any, plan: Any, num_classes: Any, key: Any, out: Any) -> None:
    """Labels of nodes from `first` on."""
    for i in range(len(out)):
        bits = mix(key ^ mix(np.uint64(first + i)))
        position = position_of(first + i, plan)
        if _unit(bits) < OWN_CLASS:
            out[i] = _community_of(position, plan) % num_classes
        else:
            out[i] = below(mix(bits), num_classes)


@inlined
def _noise(bits: Any) -> Any:
    """Bell-shaped, mean 0, variance 1: four 16-bit uniforms added up."""
    low = np.uint64(0xFFFF)
    total = (bits & low) + (bits >> np.uint64(16) & low)
    total += (bits >> np.uint64(32) & low) + (bits >> np.uint64(48))
    return (np.float64(np.int64(total)) - 2 * 65535.0) / 37837.22744


@kernel
def draw_features(first: Any, labels: Any, means: Any, key: Any, out: Any) -> None:
    """Features of nodes from `first` on: the mean of their class plus noise."""
    for i in range(len(out)):
        state = mix(key ^ mix(np.uint64(first + i)))
        mean = means[labels[i]]
        for column in range(out.shape[1]):
            state += np.uint64(GAMMA)
            out[i, column] = np.float32(mean[column] + _noise(mix(state)))


@kernel
def draw_means(key: Any, out: Any) -> None:
    """Means of the classes, noise of length about 1."""
    for i in range(len(out)):
        state = mix(key ^ mix(np.uint64(i)))
        for column in range(out.shape[1]):
            state += np.uint64(GAMMA)
            out[i, column] = _noise(mix(state)) / np.sqrt(np.float64(out.shape[1]))


@kernel
def _dot(a: Any, b: Any) -> Any:
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@kernel
def scale_for(accuracy: Any, means: Any, key: Any, limit: Any, gram: Any, projected: Any) -> Any:
    """Scale r of the means at which the nearest of them is right for a share of samples.

    Sample x = r·mean[y] + n is nearest to the mean c of the largest
    x·mean[c] - r·|mean[c]|²/2; bisection over r, since the share grows with it. `gram` (C, C) and
    `projected` (samples, C) are scratch.
    """
    num_classes, width = means.shape
    num_samples = len(projected)
    noise = np.empty(width)
    for i in range(num_classes):
        for c in range(num_classes):
            gram[i, c] = _dot(means[i], means[c])
    for i in range(num_samples):
        state = mix(key ^ mix(np.uint64(i)))
        for column in range(width):
            state += np.uint64(GAMMA)
            noise[column] = _noise(mix(state))
        for c in range(num_classes):
            projected[i, c] = _dot(noise, means[c])
    low, high = 0.0, limit
    for _ in range(24):
        scale, right = (low + high) / 2, 0
        for i in range(num_samples):
            label, best, nearest = i % num_classes, -np.inf, -1
            for c in range(num_classes):
                score = projected[i, c] + scale * (gram[label, c] - gram[c, c] / 2)
                if score > best:
                    best, nearest = score, c
            right += nearest == label
        if right < accuracy * num_samples:
            low = scale
        else:
            high = scale
    return high
