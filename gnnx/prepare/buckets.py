"""Edges sorted into ranges of rows in a scratch file, so that each range is built in the cache.

Letters: N nodes, E edges. A bucket is 2^shift rows. An edge goes to the bucket of its destination
and, where reverses are wanted, to that of its source as well; once where they are the same.
"""

from __future__ import annotations

import threading
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
_LARGEST_BLOCK = 1 << 15


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
        record_bytes = 2 * index.itemsize
        wanted = (num_entries * index.itemsize + 8 * num_nodes) // _TARGET_BYTES
        # as many as have blocks of a good size, but no fewer than make a bucket's rows small
        most = free // 4 // (record_bytes * _BLOCK_EDGES)
        least = -(-64 * num_nodes // max(1, free))
        count = max(2, min(wanted, most), least)
        self.shift = max(0, (max(1, num_nodes) - 1).bit_length() - (count - 1).bit_length())
        self.count = max(1, -(-num_nodes >> self.shift))
        block = free // 4 // (record_bytes * self.count)
        self._slots = workspace.empty(
            (self.count, max(1, min(block, _LARGEST_BLOCK)), 2), index, "edges"
        )
        self._used = np.zeros(self.count, np.int64)
        # a byte of the marks belongs to one bucket, and so to one thread, from 8 rows on
        self._num_workers = min(threads.num_threads(), self.count) if self.shift >= 3 else 1
        self._lock = threading.Lock()
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        self._scratch = workspace.scratch()

    def add(
        self,
        piece: EdgePiece,
        num_nodes: int,
        marks: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        *,
        mirror: bool,
        drop_loops: bool,
    ) -> tuple[int, int]:
        """Check edges, mark their nodes and those of loops, and put the edges into their buckets.

        Parameters
        ----------
        piece
            The edges.
        num_nodes
            N.
        marks
            Bitmaps of the nodes of edges, and of those of loops.
        mirror
            Reverses are wanted.
        drop_loops
            Loops are not.

        Returns
        -------
        tuple of int
            Number of edges whose ids are in [0, N), up to the first that is not, and of loops.
        """
        found = np.zeros((self._num_workers, 2), np.int64)

        def work(begin: int, end: int) -> None:
            for worker in range(begin, end):
                found[worker] = self._take(
                    piece, num_nodes, worker, marks, mirror=mirror, drop_loops=drop_loops
                )

        threads.run(work, self._num_workers)
        return int(found[:, 0].min()), int(found[:, 1].sum())

    def _take(
        self,
        piece: EdgePiece,
        num_nodes: int,
        worker: int,
        marks: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        *,
        mirror: bool,
        drop_loops: bool,
    ) -> tuple[int, int]:
        """Take the edges of a worker's buckets; as `add`."""
        first, last = (self.count * i // self._num_workers for i in (worker, worker + 1))
        state = np.zeros(3, np.int64)  # loops, and up to two buckets that are full
        at, before = 0, -1
        while before < at < piece.num_edges:
            state[1:] = -1
            before = at
            at = _kernels.distribute(
                piece,
                at,
                num_nodes,
                mirror,
                drop_loops,
                self.shift,
                first,
                last,
                *marks,
                self._slots,
                self._used,
                state,
            )
            for bucket in state[1:].tolist():
                if bucket >= 0:
                    self._flush(bucket)
        return at, int(state[0])

    def close(self) -> None:
        """Write what is left, and give the memory back."""
        for bucket in range(self.count):
            if self._used[bucket]:
                self._flush(bucket)
        self._slots = np.empty((0, 0, 2), self._index)

    def _flush(self, bucket: int) -> None:
        count = int(self._used[bucket])
        with self._lock:
            at = self._scratch.size // self._index.itemsize
            self._scratch.append(self._slots[bucket, :count])
        self._blocks[bucket].append((at, 2 * count))
        self._used[bucket] = 0

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
