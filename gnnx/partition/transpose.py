"""The edges of a dataset once more, by source: what gradients and pushes of messages walk along.

Letters: N nodes, E edges.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.store import DiskFeatures, GraphStore
from gnnx.store.manifest import ArrayEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.store import Dataset, DatasetWriter
    from gnnx.threads import Progress

TRANSPOSE = ("out_indptr", "out_indices", "out_edges")
"""Arrays beside those of the edges: where each node's out-edges begin, their destinations, and
their positions in the order by destination."""


def write_transpose(
    dataset: Dataset, folder: str, writer: DatasetWriter, progress: Progress | None = None
) -> None:
    """Write the edges by source; those of a source keep their order, so destinations ascend.

    A pass counts the edges of each source; then there is a pass for each range of sources whose
    edges fit half of what HOST has left.

    Parameters
    ----------
    dataset
        Whose readers and memory serve.
    folder
        Of the arrays.
    writer
        Of the new dataset, whose edges by destination are there already.
    progress
        Called with (stage, done, total).

    Raises
    ------
    BudgetError
        HOST does not hold 8 bytes a node and the edges of the source with most.
    ResourceError
        The disk is full.
    """
    with _graph_of(writer, folder, dataset) as graph:
        _write(graph, folder, writer, progress)


@contextlib.contextmanager
def _graph_of(writer: DatasetWriter, folder: str, dataset: Dataset) -> Iterator[GraphStore]:
    """Open the edges that a writer has finished."""
    indptr, indices = (
        DiskFeatures(*writer.finished(f"{folder}/{name}"), dataset.io, dataset.ledger)
        for name in ("indptr", "indices")
    )
    no_loops = DiskFeatures(
        writer.partial, ArrayEntry((0,), "int64", 0), dataset.io, dataset.ledger
    )
    try:
        nodes = indptr.num_rows - 1
        yield GraphStore(indptr, indices, no_loops, nodes, dataset.io, dataset.ledger)
    finally:
        indptr.file.close()
        indices.file.close()


def _write(
    graph: GraphStore, folder: str, writer: DatasetWriter, progress: Progress | None
) -> None:
    num_nodes, num_edges, ledger = graph.num_nodes, graph.num_edges, graph.ledger
    index = graph.index_dtype
    position = np.dtype(np.int32 if num_edges <= 2**31 else np.int64)

    def empty(size: int, dtype: Any) -> NDArray[Any]:
        return ledger.empty(size, dtype, Tier.HOST, "partition")

    def passed(first: int, stage: str) -> None:
        if progress:
            progress(stage, first, num_nodes)

    ends = empty(num_nodes + 1, np.int64)
    ends[:] = 0
    for rows in graph.iter_rows():
        _kernels.count_range(rows.indices, 0, ends[1:])
        passed(rows.first, "counting out-edges")
    np.cumsum(ends, out=ends)
    pointers = writer.array(f"{folder}/{TRANSPOSE[0]}", ends.shape, "int64")
    pointers.append(ends)
    pointers.finish()
    readers = writer.array(f"{folder}/{TRANSPOSE[1]}", (num_edges,), index.name)
    edges = writer.array(f"{folder}/{TRANSPOSE[2]}", (num_edges,), position.name)
    begin = 0
    while begin < num_nodes:
        free = ledger.free_bytes(Tier.HOST)
        capacity = 1 << 62 if free is None else free // 2
        # a cursor for each source, and two numbers for each edge
        end = _kernels.end_of_range(ends, begin, 8, index.itemsize + position.itemsize, capacity)
        size = int(ends[end] - ends[begin])
        found, places = empty(size, index), empty(size, position)
        cursor = empty(end - begin, np.int64)
        np.subtract(ends[begin:end], ends[begin], out=cursor)
        at = 0
        for rows in graph.iter_rows():
            _kernels.scatter_range(
                rows.first, rows.indptr, rows.indices, at, begin, cursor, found, places
            )
            at += len(rows.indices)
            passed(rows.first, f"turning edges around, from node {begin}")
        readers.append(found)
        edges.append(places)
        del found, places, cursor
        begin = end
    readers.finish()
    edges.finish()
