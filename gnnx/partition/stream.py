"""Parts from a few passes over the edges: a greedy first placing, then moves that lower alpha.

Letters: N nodes, E edges, P parts. What is kept is 16 bytes a node: its part, the best part so far,
and two bits for each of up to 32 parts (`_kernels.mark_rows`). More parts than that are made in
levels: the graph is cut into cells, then each cell, all cells in the same pass, into its parts.
Nodes are visited in the order of the file by one thread, so that the same graph gives the same
parts, whatever the memory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.partition._kernels import WINDOW, Level
from gnnx.partition.problem import WEIGHTS, pieces_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.partition.problem import Problem

_PASSES = 8
_WINDOWS = 4  # most windows to refine after levels: each takes as many passes as a level
_FEWEST_MOVES = 1000  # a pass that moves less than one node in so many is the last
# How much a part's fullness, 1 for an even share, weighs against the sources that it reads
# already, in mean rows. In the first placing it must keep parts from growing one after another.
_FIRST_PENALTY, _PENALTY = 2.5, 0.05


class StreamSearch:
    """Places and moves the nodes of a graph so that the parts together read little.

    Parameters
    ----------
    problem
        What is asked.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._graph = problem, problem.graph
        self._train = np.zeros(0, np.uint8)
        if "train" in problem.weights:
            self._train = self._empty(-(-self._graph.num_nodes // 8), np.uint8)
            self._train[:] = 0
            for ids in pieces_of(problem.train):
                _kernels.set_bits(ids, self._train)
        self._marks = self._empty(self._graph.num_nodes, np.uint64)
        self._best = self._empty(self._graph.num_nodes, np.int32)

    def _empty(self, size: int, dtype: type) -> NDArray[Any]:
        return self._graph.ledger.empty(size, dtype, Tier.HOST, "partition")

    def place(self, part: NDArray[np.int32]) -> None:
        """Give every node a part.

        Parameters
        ----------
        part
            (N,) int32. Overwritten.
        """
        num_parts = self._problem.num_parts
        part[:] = 0
        levels = _levels(num_parts)
        for depth, (before, after) in enumerate(itertools.pairwise(levels)):
            name = f"placing, level {depth + 1} of {len(levels) - 1}"
            slack = self._problem.imbalance / (1 if depth == len(levels) - 2 else 2)
            level = self._level(before, after, slack)
            _kernels.open_cells(part)
            self._start(part, level, name)
            self._descend(part, level, -1, name)
        if WINDOW < num_parts <= _WINDOWS * WINDOW:
            self.refine(part)

    def refine(self, part: NDArray[np.int32]) -> None:
        """Move nodes between parts as long as alpha falls; parts that are too full get smaller.

        Parameters
        ----------
        part
            (N,) int32. The part of each node; alpha does not rise, unless balance demands it.
        """
        num_parts = self._problem.num_parts
        bounds = list(range(num_parts + 1))
        for shift in (0, WINDOW // 2)[: 1 + (num_parts > WINDOW)]:
            cells = sorted({0, *range(shift, num_parts, WINDOW), num_parts})
            level = self._level(cells, bounds, self._problem.imbalance)
            self._weigh(part, level)
            for cell in range(len(cells) - 1):
                self._descend(part, level, cell, f"refining, window {cell + 1}")

    def _level(self, before: list[int], after: list[int], imbalance: float) -> Level:
        """Parts between the bounds `after`, in cells between the bounds `before`."""
        problem = self._problem
        first = np.searchsorted(after, before).astype(np.int64)
        share = np.diff(after) / problem.num_parts
        fair = np.zeros((3, len(share)))
        limit = np.zeros((3, len(share)), np.int64)
        for kind, (name, total) in enumerate(zip(WEIGHTS, problem.totals, strict=True)):
            if name in problem.weights:
                fair[kind] = share * total
                limit[kind] = np.maximum(
                    np.ceil(fair[kind] - 1e-9), np.floor(fair[kind] * (1 + imbalance))
                )
        cell = np.repeat(np.arange(len(first) - 1), np.diff(first))
        return Level(first, cell, np.zeros((3, len(share)), np.int64), limit, fair)

    def _weigh(self, part: NDArray[np.int32], level: Level) -> None:
        level.load[:] = 0
        for first, indptr, _ in self._graph.iter_rows():
            _kernels.weigh(first, indptr, part, level.load)
        if len(self._train):
            for ids in pieces_of(self._problem.train):
                _kernels.weigh_ids(ids, part, level.load[2])

    def _start(self, part: NDArray[np.int32], level: Level, name: str) -> None:
        """Give nodes a first part: in the order of their ids, or one by one where it costs least.

        Graphs that come in a good order lose by the second, all others gain much.
        """
        best = self._best
        np.copyto(best, part)
        seen = np.zeros(len(level.first) - 1, np.int64)
        size = seen.copy()
        _kernels.count_cells(best, level, size)
        _kernels.deal_in_order(best, level, seen, size)
        in_order = self._mark(best, level, -1)
        self._marks[:] = 0
        level.load[:] = 0
        self._problem.tell(name, 0, _PASSES)
        self._move(part, level, -1, _FIRST_PENALTY)
        if in_order < self._mark(part, level, -1):
            np.copyto(part, best)
            self._weigh(part, level)

    def _descend(self, part: NDArray[np.int32], level: Level, only: int, name: str) -> None:
        """Move nodes until it no longer pays; `part` is the best that was found."""
        best = _excess(level), self._mark(part, level, only)
        load = level.load.copy()
        np.copyto(self._best, part)
        for turn in range(_PASSES):
            self._problem.tell(name, turn + 1, _PASSES)
            moves = self._move(part, level, only, _PENALTY)
            now = _excess(level), self._mark(part, level, only)
            if now < best:
                best, load = now, level.load.copy()
                np.copyto(self._best, part)
            elif now > best:
                break
            if moves * _FEWEST_MOVES < self._graph.num_nodes:
                break
        np.copyto(part, self._best)
        level.load[:] = load
        self._problem.tell(name, _PASSES, _PASSES)

    def _mark(self, part: NDArray[np.int32], level: Level, only: int) -> int:
        """Mark who reads what; returns what all parts read, in nodes."""
        self._marks[:] = 0
        for first, indptr, indices in self._graph.iter_rows():
            _kernels.mark_rows(first, indptr, indices, part, level, only, self._marks)
        return int(_kernels.count_marks(self._marks))

    def _move(self, part: NDArray[np.int32], level: Level, only: int, penalty: float) -> int:
        penalty *= 1 + self._graph.num_edges / max(1, self._graph.num_nodes)
        return sum(
            _kernels.move_rows(
                first,
                indptr,
                indices,
                part,
                level,
                only,
                self._marks,
                self._train,
                penalty,
            )
            for first, indptr, indices in self._graph.iter_rows()
        )


def _excess(level: Level) -> float:
    """By how much parts are too full, in even shares."""
    over = np.maximum(level.load - level.limit, 0)
    return float((over / np.where(level.fair > 0, level.fair, np.inf)).sum())


def _levels(num_parts: int) -> list[list[int]]:
    """Bounds of cells, level by level, from one cell of all parts to one for each part."""
    levels = [[0, num_parts]]
    while len(levels[-1]) <= num_parts:
        bounds = [0]
        for begin, end in itertools.pairwise(levels[-1]):
            size = end - begin
            pieces = min(size, WINDOW)
            bounds += [begin + size * i // pieces for i in range(1, pieces + 1)]
        levels.append(bounds)
    return levels
