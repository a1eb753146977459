"""Features on disk: every row as in the file, whatever the request, the budget and the readers."""

import numpy as np
import pytest
import torch

import gnnx
from conformance import FeatureStoreSuite, bits, random_table, write_dataset


class Maker:
    """Makes stores of tables, each in a data set of its own."""

    def __init__(self, folder, **options):
        self.folder, self.options, self.opened = folder, options, []

    def __call__(self, table):
        path = self.folder / str(len(self.opened))
        self.opened.append(gnnx.open(write_dataset(path, x=table), **self.options))
        return self.opened[-1].features

    def close(self):
        for dataset in self.opened:
            dataset.close()


@pytest.fixture(scope="module", params=["16 readers", "8 MiB", "1 reader"])
def make(request, tmp_path_factory):
    options = {
        "16 readers": {"memory": "1GiB"},
        "8 MiB": {"memory": "8MiB"},
        "1 reader": {"memory": "16MiB", "io_threads": 1},
    }[request.param]
    made = Maker(tmp_path_factory.mktemp("features"), **options)
    yield made
    made.close()


class TestDiskFeatures(FeatureStoreSuite):
    """The suite, with the fixture `make` above."""


@pytest.mark.parametrize("row_shape", [(), (1,), (37,), (128,), (513,)], ids=str)
def test_read_range_gives_consecutive_rows(make, row_shape):
    table = random_table(3000, row_shape, torch.float32)
    store = make(table)
    for begin, end in ((0, 3000), (0, 0), (3000, 3000), (1, 2), (17, 2990)):
        got = store.read_range(begin, end)
        assert got.shape == (end - begin, *row_shape)
        if begin < end:
            assert np.array_equal(bits(got), bits(table)[begin:end])
