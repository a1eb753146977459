"""Epochs tell how few rows they could have read."""

import importlib
import itertools

import numpy as np
import pytest
import torch

import gnnx
import oracles
from conformance import random_table, write_dataset
from gnnx.loader import Loader

N, E, F, TRAIN = 5000, 60_000, 64, 230


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    indptr, indices = oracles.random_csr(7, N, N, E)
    return write_dataset(
        tmp_path_factory.mktemp("bound") / "graph",
        x=random_table(N, (F,), torch.float32),
        train=np.sort(np.random.default_rng(1).choice(N, TRAIN, replace=False)),
        indptr=indptr,
        indices=indices.astype(np.int32),
    )


@pytest.mark.parametrize("lookahead", ["windows", "packs", None])
def test_the_least_rows_are_those_of_beladys_rule(path, lookahead, monkeypatch):
    """Each epoch against an oracle that sees its batches."""
    module = importlib.import_module("gnnx.cache.arrange")  # the package has a function of its name
    monkeypatch.setattr(module, "entries_within", lambda _: 1 << 13)  # follows all rows
    with gnnx.open(path, memory="1536KiB", device_memory="64MiB") as opened:
        loader = Loader(opened, (4, 3), 10, lookahead=lookahead)
        loader.until = 2
        for _ in range(2):
            wanted = [set(batch.n_id.tolist()) for batch in loader]
            stats, capacity = loader.stats, loader._bound._capacity
            kept = np.concatenate(list(loader.features.held())).tolist()
            assert 0 < len(kept) < N
            spare = capacity - len(kept) if lookahead == "windows" else 0
            assert stats.rows_least == oracles.least_fetches(wanted, capacity, kept, spare)
            assert stats.rows_least <= stats.rows_from_disk + stats.rows_from_packs
            assert stats.rows_least or spare  # so short an epoch may live on what was there
        list(itertools.islice(loader, 5))
        assert loader.stats.rows_least is None  # of a part of an epoch


def test_no_bound_where_room_is_short_or_all_rows_stay(path):
    for memory in ("500KiB", "64MiB"):
        with gnnx.open(path, memory=memory, device_memory="64MiB") as opened:
            loader = Loader(opened, (4, 3), 10)
            list(loader)
            assert loader.stats.rows_least is None
