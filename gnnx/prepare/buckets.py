"""Edges sorted into ranges of rows in a scratch file, so that each range is built in the cache.

Letters: N nodes, E edges. A bucket is 2^shift rows. An edge goes to the bucket of its destination
and, where reverses are wanted, to that of its source as well; once where they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx import threads
from gnnx.memory import Tier
from gnnx.prepare import _kernels
from gnnx.prepare.edges import EdgePiece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Workspace

_TARGET_BYTES = 4 << 20  # of a bucket's rows and entries: what a second-level cache holds, or near
_BLOCK_EDGES = 1 << 12  # that are written at once, where the memory allows: 32 KiB
_LINE_EDGES = 8  # of a cache line
# Blocks have an odd number of cache lines: their ends, where threads write, then lie in different
# sets of the cache, and an edge takes 13 ns instead of 20.
_LARGEST_BLOCK = (1 << 13) + _LINE_EDGES


def layout(
    num_nodes: int, num_entries: int, index_bytes: int, free_bytes: int
) -> tuple[int, int, int]:
    """Choose the sizes of buckets and of the blocks in which edges go to them.

    Parameters
    ----------
    num_nodes
        N.
    num_entries
        E, twice where reverses are wanted.
    index_bytes
        Of an id.
    free_bytes
        That HOST has left.

    Returns
    -------
    tuple of int
        Bits of the rows of a bucket, the number of buckets, and the edges of a block.
    """
    record_bytes = 2 * index_bytes
    wanted = (num_entries * index_bytes + 8 * num_nodes) // _TARGET_BYTES
    # as many as have blocks of a good size, but no fewer than make a bucket's rows small
    most = free_bytes // 4 // (record_bytes * _BLOCK_EDGES)
    least = -(-64 * num_nodes // max(1, free_bytes))
    count = max(2, min(wanted, most), least)
    shift = max(0, (max(1, num_nodes) - 1).bit_length() - (count - 1).bit_length())
    count = max(1, -(-num_nodes >> shift))
    block = free_bytes // 4 // (record_bytes * count * threads.num_threads())
    if block > _LINE_EDGES:
        block = block // (2 * _LINE_EDGES) * 2 * _LINE_EDGES + _LINE_EDGES
    return shift, count, max(1, min(block, _LARGEST_BLOCK))


class Buckets:
    """Takes edges in any order and gives those of each range of rows.

    Parameters
    ----------
    num_nodes
        N.
    num_entries
        E, twice where reverses are wanted.
    index
        Type of ids.
    workspace
        Gives a quarter of what HOST has left while edges come, and the scratch file.
    """

    def __init__(
        self, num_nodes: int, num_entries: int, index: np.dtype[Any], workspace: Workspace
    ) -> None:
        self._workspace, self._index = workspace, index
        free = workspace.ledger.free_bytes(Tier.HOST)
        free = 1 << 40 if free is None else free
        self._num_nodes = num_nodes
        self._num_workers = workers = threads.num_threads()
        self.shift, self.count, block = layout(num_nodes, num_entries, index.itemsize, free)
        self._slots = workspace.empty((workers, self.count, block, 2), index, "edges")
        self._used = np.zeros((workers, self.count), np.int64)
        self._marks = workspace.empty((workers, 2, -(-num_nodes // 8)), np.uint8, "edges")
        self._marks[:] = 0
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        self._scratch = workspace.scratch()

    def add(self, piece: EdgePiece, *, mirror: bool, drop_loops: bool) -> tuple[int, int]:
        """Check edges and put them into their buckets, each thread some of the edges.

        Parameters
        ----------
        piece
            The edges.
        mirror
            Reverses are wanted.
        drop_loops
            Loops are not.

        Returns
        -------
        tuple of int
            The first edge with an id outside [0, N), or their number, and the number of loops.
        """
        workers = self._num_workers
        bounds = [piece.num_edges * i // workers for i in range(workers + 1)]
        ends = list(bounds[1:])
        num_loops = np.zeros((workers, 1), np.int64)

        def work(begin: int, end: int) -> None:
            for w in range(begin, end):
                touched, looped = self._marks[w]
                at, before = bounds[w], -1
                while before < at < bounds[w + 1]:
                    before = at
                    at = _kernels.distribute(
                        piece,
                        at,
                        bounds[w + 1],
                        self._num_nodes,
                        mirror,
                        drop_loops,
                        self.shift,
                        touched,
                        looped,
                        self._slots[w],
                        self._used[w],
                        num_loops[w],
                    )
                    if at < bounds[w + 1] or self._used[w].max() == self._slots.shape[2]:
                        # the others are near to full where the edges are in no order
                        self._flush(w, self._slots.shape[2] * 3 // 4)
                ends[w] = at

        threads.run(work, workers)
        wrong = [end for end, bound in zip(ends, bounds[1:], strict=True) if end < bound]
        return min(wrong, default=piece.num_edges), int(num_loops.sum())

    def close(self, touched: NDArray[np.uint8], looped: NDArray[np.uint8]) -> None:
        """Write what is left, and give the memory back.

        Parameters
        ----------
        touched
            Bitmap that gets the bits of the sources of edges.
        looped
            Bitmap that gets the bits of the nodes with loops.
        """
        for worker in range(self._num_workers):
            self._flush(worker, 1)
        for marks in self._marks:
            touched |= marks[0]
            looped |= marks[1]
        self._slots = self._slots[:0].copy()
        self._marks = self._marks[:0].copy()

    def _flush(self, worker: int, least: int) -> None:
        """Write the slots of so many edges at least."""
        used = self._used[worker]
        chosen = np.flatnonzero(used >= max(1, least)).tolist()
        sizes = (2 * used[chosen]).tolist()
        slots = self._slots[worker].reshape(self.count, -1)
        at = self._scratch.append(*(slots[b, :size] for b, size in zip(chosen, sizes, strict=True)))
        at //= self._index.itemsize
        for bucket, size in zip(chosen, sizes, strict=True):
            self._blocks[bucket].append((at, size))
            at += size
        used[chosen] = 0

    def num_edges(self, bucket: int) -> int:
        """Edges of a bucket."""
        return sum(size for _, size in self._blocks[bucket]) // 2

    def pieces(self, bucket: int) -> Iterator[EdgePiece]:
        """Read the edges of a bucket.

        Parameters
        ----------
        bucket
            From 0 on.

        Yields
        ------
        EdgePiece
            Valid until the next one is asked for.
        """
        size = 2 * min(self._workspace.rows_of(2 * self._index.itemsize), self.num_edges(bucket))
        stored = self._scratch.array("sorted edges", (0, 2), self._index)
        ids = self._workspace.empty(size, self._index, "edges")
        filled = 0
        for at, count in self._blocks[bucket]:
            done = 0
            while done < count:
                step = min(count - done, size - filled)
                stored.read_into(ids[filled : filled + step], at + done)
                filled, done = filled + step, done + step
                if filled == size:
                    yield EdgePiece(ids, filled // 2, 0, 1, 2)
                    filled = 0
        if filled:
            yield EdgePiece(ids[:filled], filled // 2, 0, 1, 2)
