"""What a dataset is made from, as a text: equal texts, equal bytes, unless a file was falsified."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gnnx
from gnnx.interop import InMemoryGraph
from gnnx.prepare.recipe import document_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHANGE_NO_BYTE = {"out", "memory", "overwrite", "progress"}
_FILES = {"source", "features", "labels", "train", "val", "test"}
_FILES |= {"edge_weight", "edge_attr", "edge_time"}  # or columns, which are no files


def origin_of(arguments: Mapping[str, Any]) -> str | None:
    """Stand for the inputs and options of a preparation.

    A file counts by its path, size, and time of its last change.

    Parameters
    ----------
    arguments
        Of `prepare`, by name.

    Returns
    -------
    str or None
        SHA-256 in hexadecimal; None for a graph in memory, which nothing stands for.
    """
    if isinstance(arguments["source"], InMemoryGraph):
        return None
    described: dict[str, Any] = {"gnnx": gnnx.__version__}
    for name, value in arguments.items():
        if name not in _CHANGE_NO_BYTE:
            files = () if value is None else _files(name, value, arguments["root"])
            described[name] = [str(value), [_stamp(path) for path in files]]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _files(name: str, value: Any, root: Path | str | None) -> Iterator[Path]:
    """Files that an argument names: itself, those of a folder, those of a recipe."""
    if name not in _FILES:
        return
    path = Path(value)
    yield path
    if path.is_dir():
        yield from sorted(path.rglob("*"))
    elif path.suffix == ".toml":
        folder = path.absolute().parent if root is None else Path(root)
        for text in _texts(document_of(path)):
            yield from sorted(_matches(folder, text))


def _texts(value: Any) -> Iterator[str]:
    """All texts of a recipe: its paths and globs are among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _matches(folder: Path, text: str) -> list[Path]:
    try:
        return [folder / text] if Path(text).is_absolute() else list(folder.glob(text))
    except (
        ValueError,
        OSError,
        IndexError,
    ):  # the last of "."; a name of a column, say, that is no pattern of files
        return []


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return str(path), -1, 0
    return str(path.absolute()), found.st_size, found.st_mtime_ns
