"""Importing gnnx costs nothing and changes nothing; every public name is there when asked for."""

import json
import subprocess
import sys

import pytest

import gnnx

# Runs in a fresh process, since this one has long imported everything.
_PROBE = """
import json, sys, threading, time
begin = time.perf_counter()
import gnnx
seconds = time.perf_counter() - begin
names = dir(gnnx)
heavy = {"torch", "numba", "numpy", "cupy", "dgl", "torch_geometric", "pyarrow"}
print(json.dumps({
    "heavy": sorted(heavy & set(sys.modules)),
    "num_threads": threading.active_count(),
    "seconds": seconds,
    "names": names,
}))
"""


@pytest.fixture(scope="module")
def fresh() -> dict:
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_import_loads_no_heavy_package(fresh):
    assert fresh["heavy"] == []


def test_import_starts_no_thread(fresh):
    assert fresh["num_threads"] == 1


def test_import_is_quick(fresh):
    assert fresh["seconds"] < 0.3


def test_dir_lists_the_public_names_before_they_are_loaded(fresh):
    assert set(gnnx.__all__) <= set(fresh["names"])


@pytest.mark.parametrize("name", gnnx.__all__)
def test_public_name_resolves(name):
    value = getattr(gnnx, name)
    assert value.__name__.rpartition(".")[2] == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        gnnx.no_such_name  # noqa: B018
