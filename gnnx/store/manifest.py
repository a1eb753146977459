"""The manifest of a dataset: what the folder holds, in one small JSON file that is written last.

Letters: N nodes, E edges, F feature width. docs/format.md describes the format field by field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.graph import EdgeType

FORMAT, VERSION = "gnnx", 1
MANIFEST = "manifest.json"
JOURNAL = "journal.json"  # of a dataset that is being written
HEADER_BYTES = 4096  # direct I/O reads whole blocks, so data begin at one
PAGE_BYTES = 64 << 20  # unit of checksums
MISSING_LABEL = 255
"""Of labels of which a node may have several, 0 or 1: one that is not known."""
_DISK_DTYPES = {
    **{name: np.dtype(name).newbyteorder("<") for name in ("float16", "float32", "float64")},
    **{name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")},
    "uint8": np.dtype("uint8"),
    "bool": np.dtype("bool"),
    "bfloat16": np.dtype("<u2"),  # NumPy has no bfloat16
}
_NAME = re.compile(r"\w+(/\w+)*", re.ASCII)


def disk_dtype(name: str) -> np.dtype[Any]:
    """NumPy type in which a logical dtype is stored.

    Parameters
    ----------
    name
        Such as ``"float32"`` or ``"bfloat16"``.

    Returns
    -------
    dtype
        Little endian.

    Raises
    ------
    UsageError
        The format has no such dtype.
    """
    if name not in _DISK_DTYPES:
        raise UsageError(f"dtype {name!r} cannot be stored", f"Use one of {sorted(_DISK_DTYPES)}.")
    return _DISK_DTYPES[name]


def edges_folder(edge_type: EdgeType) -> str:
    """Folder of an edge type's arrays, such as ``"edges/node-edge-node"``."""
    return "edges/" + "-".join(edge_type)


def check_name(name: str) -> str:
    """Give a type's or array's name back if it is made of letters, digits, ``_`` and ``/``.

    Parameters
    ----------
    name
        Such as ``"paper"``, ``"nodes/paper/x"`` or ``"edges/node-edge-node/indptr"``.

    Returns
    -------
    str
        The name.

    Raises
    ------
    UsageError
        It has another character, and could lead out of the folder or be taken for another name.
    """
    if not _NAME.fullmatch(name.replace("-", "_") if name.startswith("edges/") else name):
        raise UsageError(f"{name!r} cannot be a name", "Use letters, digits and underscores.")
    return name


@dataclasses.dataclass(frozen=True)
class NodeType:
    """Nodes of one type."""

    count: int
    """N."""
    num_classes: int
    """Of their labels; 0 without labels."""


@dataclasses.dataclass(frozen=True)
class ArrayEntry:
    """One array of a dataset."""

    shape: tuple[int, ...]
    """First the rows, then the shape of a row."""
    dtype: str
    """Logical dtype."""
    crc32: int
    """Of the file of its page checksums, and so of all its data."""

    @property
    def num_bytes(self) -> int:
        """Size of the data, without the header."""
        return math.prod(self.shape) * disk_dtype(self.dtype).itemsize

    @property
    def num_pages(self) -> int:
        """Pages of `PAGE_BYTES`, the last one partly filled."""
        return -(-self.num_bytes // PAGE_BYTES)

    def header(self) -> bytes:
        """First `HEADER_BYTES` bytes of the file: an .npy header, padded with spaces."""
        form = {
            "descr": disk_dtype(self.dtype).str,
            "fortran_order": False,
            "shape": self.shape,
        }
        text = repr(form).encode("latin1")
        size = HEADER_BYTES - 10  # magic string, version 1.0, length of the rest
        return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a dataset holds.

    Parameters
    ----------
    nodes
        Node types by name.
    edges
        E by edge type.
    arrays
        Arrays by name: the path inside the folder without ``.npy``.
    report
        Counts that preparation found worth telling.
    """

    nodes: dict[str, NodeType]
    edges: dict[EdgeType, int]
    arrays: dict[str, ArrayEntry]
    report: dict[str, int]

    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "nodes": {name: dataclasses.asdict(kind) for name, kind in self.nodes.items()},
            "edges": [
                {"src": src, "relation": relation, "dst": dst, "count": count}
                for (src, relation, dst), count in sorted(self.edges.items())
            ],
            "arrays": {
                name: {**dataclasses.asdict(entry), "bytes": entry.num_bytes}
                for name, entry in self.arrays.items()
            },
            "report": self.report,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest in hexadecimal: equal if and only if the datasets are."""
        return hashlib.sha256(_canonical(self._document())).hexdigest()

    def dump(self) -> str:
        """Text of the file: sorted keys, and the crc32 of all else under ``"crc32"``."""
        document = self._document()
        document["crc32"] = zlib.crc32(_canonical(document))
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and check the manifest of a dataset.

        Parameters
        ----------
        folder
            The dataset.

        Returns
        -------
        Manifest
            One whose arrays agree with the counts of nodes and edges.

        Raises
        ------
        DataError
            The folder is no complete dataset, or its manifest is damaged, of another format or
            version, or contradicts itself.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise _missing(folder)
        again = "Restore the file, or prepare the dataset again."
        try:
            document = json.loads(path.read_bytes())
        except ValueError as error:  # bad JSON and bad UTF-8 alike
            raise DataError(f"{path}: damaged: {error}", again) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DataError(f"{path}: not the manifest of a gnnx dataset", "Give another folder.")
        if document.get("version") != VERSION:
            raise DataError(
                f"{path}: format version {document.get('version')}, this gnnx reads {VERSION}",
                "Use the version of gnnx that wrote it, or prepare the dataset again.",
            )
        expected, found = document.pop("crc32", None), zlib.crc32(_canonical(document))
        if expected != found:
            raise DataError(f"{path}: crc32 {expected} expected, {found} found", again)
        try:
            manifest = cls._parse(document)
            manifest.check()
        except (KeyError, TypeError, ValueError, AttributeError, UsageError, DataError) as error:
            cause = str(error).partition("\n")[0]
            raise DataError(f"{path}: contradicts itself: {cause}", again) from None
        return manifest

    @classmethod
    def _parse(cls, document: dict[str, Any]) -> Manifest:
        arrays = {}
        for name, form in document["arrays"].items():
            entry = ArrayEntry(tuple(form["shape"]), form["dtype"], form["crc32"])
            if form["bytes"] != entry.num_bytes:
                raise ValueError(f"{name}: {form['bytes']} bytes for {entry.num_bytes}")
            arrays[check_name(name)] = entry
        return cls(
            nodes={name: NodeType(**kind) for name, kind in document["nodes"].items()},
            edges={
                (kind["src"], kind["relation"], kind["dst"]): kind["count"]
                for kind in document["edges"]
            },
            arrays=arrays,
            report=document["report"],
        )

    def check(self) -> None:
        """Hold the arrays against the counts of nodes and edges.

        Raises
        ------
        DataError
            An array has another length than its nodes or edges, or a type is missing.
        """
        expected: dict[str, tuple[int, ...]] = {}
        for name, kind in self.nodes.items():
            for array in ("x", "y", "id", "key", "key_order"):
                expected[f"nodes/{name}/{array}"] = (kind.count,)
            expected[f"nodes/{name}/key_offsets"] = (kind.count + 1,)
            self._check_scale(f"nodes/{name}/x")
        for edge_type, count in self.edges.items():
            for end in (edge_type[0], edge_type[2]):
                if end not in self.nodes:
                    raise DataError(f"edge type {edge_type}: no node type {end!r}", "Declare it.")
            folder = edges_folder(edge_type)
            for array, size in (("indptr", self.nodes[edge_type[2]].count + 1), ("indices", count)):
                if f"{folder}/{array}" not in self.arrays:
                    raise DataError(f"{folder}/{array}: missing", "Write it.")
                expected[f"{folder}/{array}"] = (size,)
            expected[f"{folder}/out_indptr"] = (self.nodes[edge_type[0]].count + 1,)
            expected |= {f"{folder}/{array}": (count,) for array in ("out_indices", "out_edges")}
        for name, shape in expected.items():
            entry = self.arrays.get(name)
            if entry is not None and entry.shape[:1] != shape:
                raise DataError(
                    f"{name}: {shape[0]} rows expected, {entry.shape[0]} found",
                    "Write as many rows as there are nodes or edges.",
                )

    def _check_scale(self, name: str) -> None:
        """Hold the scale of features against them."""
        x, scale = self.arrays.get(name), self.arrays.get(f"{name}_scale")
        if scale is None:
            return
        if x is None or x.dtype != "int8" or (scale.dtype, scale.shape) != ("float32", x.shape[1:]):
            found = "none" if x is None else f"{x.dtype} {x.shape}"
            raise DataError(
                f"{name}_scale: {scale.dtype} {scale.shape} for features {found}",
                "Write int8 features, and float32 for each of their columns.",
            )


def _missing(folder: Path) -> DataError:
    """Tell why a folder has no manifest."""
    partial = folder.with_name(f".{folder.name}.partial") if folder.name else folder
    if folder.name and partial.exists():
        done = _stages_done(partial)
        return DataError(
            f"{folder}: incomplete: its preparation has not ended; "
            f"stages done: {', '.join(done) or 'none'}",
            f"Give the same command again: it {'goes on from there' if done else 'begins anew'}.",
        )
    if not folder.exists():
        return DataError(f"{folder}: no such folder", "Give the folder of a dataset.")
    return DataError(f"{folder}: not a gnnx dataset: no {MANIFEST}", "Prepare it first.")


def _stages_done(partial: Path) -> list[str]:
    """Names of the stages that have ended in a folder that is being written."""
    try:
        return list(json.loads((partial / JOURNAL).read_text(encoding="utf-8"))["stages"])
    except (OSError, ValueError, TypeError, KeyError):  # none has, or the journal is damaged
        return []


def _canonical(document: dict[str, Any]) -> bytes:
    """Bytes that checksums are of, whatever the file's white space."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
