"""Suites that every implementation of an interface passes, and a small data set to run them on."""

import concurrent.futures

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnx.errors import DataError, UsageError
from gnnx.memory import Budget, Ledger
from gnnx.store import DatasetWriter

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int64,
]
WIDTHS = [1, 2, 3, 7, 16, 33, 64, 100, 128, 257, 513]
ROW_SHAPES = [(), *((width,) for width in WIDTHS), (3, 5)]


def random_table(num_rows, row_shape, dtype=torch.float32, seed=0):
    """Rows of random bits, not-a-numbers and all."""
    table = torch.empty((num_rows, *row_shape), dtype=dtype)
    bits(table)[:] = np.random.default_rng(seed).integers(0, 256, bits(table).shape, np.uint8)
    return table


def bits(table):
    """Rows as bytes, (R, row bytes): comparing them knows no dtype and no not-a-number."""
    row_bytes = int(np.prod(table.shape[1:])) * table.element_size()
    return table.contiguous().view(-1).view(torch.uint8).numpy().reshape(len(table), row_bytes)


def write_dataset(path, *, overwrite=False, num_nodes=None, num_classes=0, **arrays):
    """Write an untyped data set from arrays by the last part of their names: x, y, train, indptr…

    bfloat16 tensors are stored as such; without a CSR there are no edges.
    """
    arrays = {
        name: value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        for name, value in arrays.items()
    }
    if num_nodes is None:
        num_nodes = next(len(arrays[name]) for name in ("x", "y") if name in arrays)
    arrays.setdefault("indptr", torch.zeros(num_nodes + 1, dtype=torch.int64))
    arrays.setdefault("indices", torch.zeros(0, dtype=torch.int32))
    with DatasetWriter(path, overwrite=overwrite, ledger=Ledger(Budget())) as writer:
        for name, value in arrays.items():
            edges = name in {"indptr", "indices", "loops"}
            folder = "edges/node-edge-node" if edges else "nodes/node"
            dtype = str(value.dtype).removeprefix("torch.")
            array = writer.array(f"{folder}/{name}", tuple(value.shape), dtype)
            stored = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
            array.append(stored.contiguous().numpy())
        writer.nodes("node", num_nodes, num_classes=num_classes)
        writer.edges(("node", "edge", "node"), len(arrays["indices"]))
    return path


def write_typed_dataset(path, nodes, edges, *, overwrite=False):
    """Write a typed data set.

    `nodes` has (count, num_classes, arrays by name) by type, `edges` the CSR by edge type.
    """
    with DatasetWriter(path, overwrite=overwrite, ledger=Ledger(Budget())) as writer:

        def write(name, values):
            values = np.ascontiguousarray(values)
            writer.array(name, values.shape, values.dtype.name).append(values)

        for node_type, (count, num_classes, arrays) in nodes.items():
            writer.nodes(node_type, count, num_classes=num_classes)
            for name, values in arrays.items():
                write(f"nodes/{node_type}/{name}", values)
        for edge_type, (indptr, indices) in edges.items():
            writer.edges(edge_type, len(indices))
            write(f"edges/{'-'.join(edge_type)}/indptr", indptr.astype(np.int64))
            write(f"edges/{'-'.join(edge_type)}/indices", indices.astype(np.int32))
    return path


class FeatureStoreSuite:
    """What every FeatureStore must do.

    The module of a subclass has a fixture `make` of module scope: a function from a table, a
    tensor, to a store of its rows.
    """

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
    def test_every_request_gives_the_rows(self, make, dtype, row_shape):
        num_rows = 300
        table = random_table(num_rows, row_shape, dtype)
        store = make(table)
        assert (store.num_rows, store.row_shape, store.dtype) == (num_rows, row_shape, dtype)
        assert store.row_bytes == table[0].numel() * dtype.itemsize
        rng = np.random.default_rng(1)
        requests = {
            "all": np.arange(num_rows),
            "none": np.arange(0),
            "first": np.array([0]),
            "last": np.array([num_rows - 1]),
            "backwards": np.arange(num_rows)[::-1].copy(),
            "unsorted": rng.permutation(num_rows)[:50],
            "sorted": np.sort(rng.permutation(num_rows)[:50]),
            "duplicates": rng.integers(0, num_rows, 1000),
            "the same": np.full(70, 17),
        }
        for name, rows in requests.items():
            got = store.read(rows)
            assert got.dtype == dtype, name
            assert got.shape == (len(rows), *row_shape), name
            assert got.is_contiguous(), name
            assert got.data_ptr() % 64 == 0 or len(rows) == 0, name
            if len(rows):
                assert np.array_equal(bits(got), bits(table)[rows]), name

    @settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_any_rows_go_to_any_slots(self, make, data):
        dtype = data.draw(st.sampled_from(DTYPES))
        width = data.draw(st.integers(1, 513))
        num_rows = data.draw(st.integers(1, 3000))
        rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=300))
        rows = np.array(rows, np.int64)
        room = len(rows) + data.draw(st.integers(0, 5))
        slots = np.random.default_rng(len(rows)).permutation(room)[: len(rows)]
        table = random_table(num_rows, (width,), dtype)
        out = random_table(room, (width,), dtype, seed=1)
        expected = bits(out).copy()
        expected[slots] = bits(table)[rows]
        assert make(table).fetch(rows, out, slots).wait() is out
        assert np.array_equal(bits(out), expected)

    def test_out_may_be_larger_than_the_request(self, make):
        table = random_table(50, (5,), torch.float32)
        out = random_table(8, (5,), torch.float32, seed=1)
        before = bits(out).copy()
        rows = np.array([40, 3, 3])
        assert make(table).read(rows, out) is out
        assert np.array_equal(bits(out)[:3], bits(table)[rows])
        assert np.array_equal(bits(out)[3:], before[3:])

    def test_slots_without_out_make_room_for_the_highest(self, make):
        table = random_table(50, (5,), torch.float32)
        got = make(table).read(np.array([40, 3]), slots=np.array([1, 6]))
        assert got.shape == (7, 5)
        assert np.array_equal(bits(got)[[1, 6]], bits(table)[[40, 3]])

    @pytest.mark.parametrize("row", [-1, 50, 2**62])
    def test_a_row_outside_is_named(self, make, row):
        store = make(random_table(50, (3,), torch.float32))
        with pytest.raises(DataError, match=rf"row {row}\b.*\b50 rows"):
            store.fetch(np.array([1, row, 2]))

    def test_an_unfit_out_is_refused(self, make):
        store = make(random_table(50, (4,), torch.float32))
        rows = np.arange(6)
        for out in (
            torch.empty((6, 4), dtype=torch.float16),
            torch.empty((6, 5)),
            torch.empty((5, 4)),
            torch.empty((4, 6)).T,
            torch.empty(24),
        ):
            with pytest.raises(UsageError):
                store.fetch(rows, out)

    @pytest.mark.parametrize("slots", [[0, 1, 6], [0, -1, 2], [2**60, 0, 1]])
    def test_a_slot_outside_is_refused(self, make, slots):
        store = make(random_table(50, (4,), torch.float32))
        with pytest.raises(UsageError):
            store.fetch(np.arange(3), torch.empty((6, 4)), np.array(slots))

    def test_many_requests_from_many_threads(self, make):
        table = random_table(2000, (9,), torch.float32)
        store = make(table)

        def ask(seed):
            rng = np.random.default_rng(seed)
            requests = [rng.integers(0, 2000, rng.integers(0, 400)) for _ in range(10)]
            pending = [store.fetch(rows) for rows in requests]
            return all(
                np.array_equal(bits(one.wait(60)), bits(table)[rows])
                for one, rows in zip(reversed(pending), reversed(requests), strict=True)
                if len(rows)
            )

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert all(pool.map(ask, range(24)))
