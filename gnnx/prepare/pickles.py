"""Pickled graphs, Planetoid's `ind.*` and PyTorch Geometric's `.pt`, without running their code.

An unpickler that knows a few classes of plain data, and makes empty records of those of SciPy and
PyTorch Geometric, reads them; a file that names anything else is refused. Letters: N nodes.
"""

from __future__ import annotations

import io
import pickle
import types
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gnnx.errors import DataError
from gnnx.interop import InMemoryGraph, from_pyg
from gnnx.interop.tables import SparseTable

if TYPE_CHECKING:
    from pathlib import Path

_PLANETOID_VAL = 500  # nodes after the training nodes, by the benchmark's definition
_PLAIN = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    *((home, kind) for home in ("builtins", "__builtin__") for kind in ("list", "set", "dict")),
    ("_codecs", "encode"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "Size"),
    *(
        ("torch", f"{kind}Storage")
        for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte")
    ),
    ("torch", "BoolStorage"),
}


class _Record:
    """Stands for an object of a package that is not needed: its state and nothing else."""

    state: dict[str, Any]

    def __init__(self, *_args: object) -> None:
        self.state = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {"state": state}


def _reconstruct(kind: type[Any], _base: object, _state: object) -> Any:
    return kind()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")}:
            return _reconstruct
        if module.startswith(("scipy.sparse", "torch_geometric.")):
            return _Record
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise DataError(
            f"the pickle asks for {module}.{name}, which is no plain data",
            "Load it yourself, if you trust its author, and use gnnx.from_pyg.",
        )


def read_pt(path: Path) -> InMemoryGraph:
    """Read a `torch_geometric.data.Data` that `torch.save` wrote, zipped once more or not.

    Parameters
    ----------
    path
        `.pt`, or a zip of one.

    Returns
    -------
    InMemoryGraph
        As `gnnx.from_pyg`.

    Raises
    ------
    DataError
        It is no such file, or asks for code to be run.
    """
    import torch

    module = types.ModuleType("restricted")
    module.Unpickler, module.load = _Unpickler, pickle.load  # type: ignore[attr-defined]
    try:
        with path.open("rb") as raw:
            file = _member(raw, path.name) if path.suffix == ".zip" else raw
            found = torch.load(file, "cpu", pickle_module=module, weights_only=False)
    except DataError as error:
        raise DataError(f"{path.name}: {error.cause}", error.remedy) from None
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError) as error:
        cause = str(error).partition("\n")[0]
        raise DataError(f"{path.name}: cannot be read: {cause}", "Fetch it again.") from None
    graph = from_pyg(_fields(found, path.name))
    graph.name = path.name
    return graph


def _member(raw: BinaryIO, where: str) -> BinaryIO:
    """Open the only `.pt` of a zip."""
    archive = zipfile.ZipFile(raw)
    names = [name for name in archive.namelist() if name.endswith(".pt")]
    if len(names) != 1:
        raise DataError(f"{where}: {len(names)} .pt files in it", "Unpack it.")
    return io.BytesIO(archive.read(names[0]))


def _fields(found: Any, where: str) -> dict[str, Any]:
    """Give the tensors of a Data, of its newer and older form."""
    if isinstance(found, tuple) and found:
        found = found[0]  # (data, slices)
    state = found.state if isinstance(found, _Record) else found
    if isinstance(state, dict) and isinstance(state.get("_store"), _Record):
        state = state["_store"].state.get("_mapping", {})
    if not isinstance(state, dict):
        raise DataError(f"{where}: holds no graph", "Save a torch_geometric Data.")
    return {name: value for name, value in state.items() if value is not None}


def read_planetoid(path: Path) -> InMemoryGraph:
    """Read the Planetoid files of a data set.

    Parameters
    ----------
    path
        One of its files, `ind.NAME.graph`; the others lie beside it.

    Returns
    -------
    InMemoryGraph
        With its public split.

    Raises
    ------
    DataError
        A file is missing, damaged, or asks for code to be run.
    """
    stem = path.name.removesuffix(".graph")
    parts = {
        name: _load(path.with_name(f"{stem}.{name}"))
        for name in ("y", "tx", "ty", "allx", "ally", "graph")
    }
    listed = path.with_name(f"{stem}.test.index")
    try:
        words = listed.read_text().split()
    except (OSError, ValueError) as error:
        raise DataError(f"{listed}: {error}", "Fetch it again.") from None
    wrong = [f"{line}: {word!r}" for line, word in enumerate(words, 1) if not word.isdecimal()]
    if wrong:
        raise DataError(f"{listed.name}:{wrong[0]} is not an integer id", "Fetch it again.")
    test = np.array(words, np.int64)
    graph: dict[int, list[int]] = parts["graph"]
    num_nodes = max(graph) + 1
    lists = [graph.get(node, []) for node in range(num_nodes)]
    src = np.repeat(np.arange(num_nodes), [len(found) for found in lists])
    dst = np.array([node for found in lists for node in found], np.int64)
    labels = np.full(num_nodes, -1)
    num_known = len(parts["ally"])
    for rows, values in ((np.arange(num_known), parts["ally"]), (test, parts["ty"])):
        labels[rows] = np.where(values.any(1), values.argmax(1), -1)
    num_train = len(parts["y"])
    return InMemoryGraph(
        np.stack([src, dst]),
        num_nodes,
        _placed(parts["allx"], parts["tx"], test, num_nodes),
        labels,
        {
            "train": np.arange(num_train),
            "val": np.arange(num_train, min(num_train + _PLANETOID_VAL, num_known)),
            "test": np.sort(test),
        },
        name=path.name,
    )


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path.name}: {error.cause}", error.remedy) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "Fetch all files of the set.") from None
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError) as error:
        raise DataError(f"{path.name}: cannot be read: {error}", "Fetch it again.") from None


def _placed(known: _Record, tested: _Record, test: np.ndarray, num_nodes: int) -> SparseTable:
    """Rows of both matrices at their nodes; the others are empty."""
    first, second = known.state, tested.state
    starts = np.concatenate([first["indptr"], second["indptr"][1:] + first["indptr"][-1]])
    indices = np.concatenate([first["indices"], second["indices"]])
    data = np.concatenate([first["data"], second["data"]])
    row_of = np.full(num_nodes, -1)
    num_known = len(first["indptr"]) - 1
    row_of[:num_known] = np.arange(num_known)
    row_of[test] = num_known + np.arange(len(test))
    lengths = np.where(row_of < 0, 0, np.diff(starts)[row_of])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    order = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in row_of if row >= 0])
    num_columns = int((first.get("_shape") or first["shape"])[1])
    return SparseTable(indptr, indices[order], data[order], num_columns)
