"""Keys of nodes: what the input called them, by id, and the ids of keys.

`key.npy` holds integers, or `key_offsets.npy` and `key_bytes.npy` hold UTF-8 text as Arrow lays it
out; `key_order.npy` lists ids by ascending key, and is absent where keys ascend with the ids.

Letters: N nodes, R keys asked.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError
from gnnx.store.manifest import HEADER_BYTES, disk_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.store.manifest import Manifest


class Keys(abc.ABC):
    """Keys of N nodes, in files that are mapped: pages come as they are needed.

    Parameters
    ----------
    order
        (N,) ids by ascending key; None where keys ascend with the ids.
    """

    def __init__(self, order: NDArray[np.int64] | None) -> None:
        self._order = order

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64] | list[str]:
        """Give the keys of nodes: (R,) int64, or R strings."""

    @abc.abstractmethod
    def _comparable(self, key: Any) -> Any:
        """Give what keys were sorted by."""

    def ids(self, keys: Sequence[int] | Sequence[str] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Find nodes by their keys.

        Parameters
        ----------
        keys
            Integers or strings, as the input had them.

        Returns
        -------
        ndarray, (R,) int64
            The nodes.

        Raises
        ------
        DataError
            No node has such a key.
        """
        return np.array([self._find(key) for key in keys], np.int64)

    def _find(self, key: Any) -> int:
        low, high, wanted = 0, len(self), self._comparable(key)
        while low < high:
            middle = (low + high) // 2
            node = middle if self._order is None else int(self._order[middle])
            if not 0 <= node < len(self):
                raise _damaged(self._order, f"node {node} among {len(self)} nodes")
            value = self._comparable(self.of(np.array([node]))[0])
            if value == wanted:
                return node
            low, high = (middle + 1, high) if value < wanted else (low, middle)
        raise DataError(f"no node has the key {key!r}", "Give a key of the input.")


class _IntegerKeys(Keys):
    """Keys as a list of numbers, or the ids themselves, as a range."""

    def __init__(self, keys: NDArray[np.int64] | range, order: NDArray[np.int64] | None) -> None:
        super().__init__(order)
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids.copy() if isinstance(self._keys, range) else np.array(self._keys[ids])

    def _comparable(self, key: Any) -> Any:
        return int(key)


class _MovedKeys(_IntegerKeys):
    """Ids before the nodes were put into parts, of a dataset without keys; in no order."""

    _PIECE = 1 << 16

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        keys = super().of(ids)
        bad = np.flatnonzero((keys < 0) | (keys >= len(self)))
        if len(bad):
            raise _damaged(self._keys, f"node {keys[bad[0]]} among {len(self)} nodes")
        return keys

    def ids(self, keys: Sequence[Any] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Find nodes by their ids before, in one pass over all of them; see `Keys.ids`."""
        wanted = np.array([int(key) for key in keys], np.int64)
        order = np.argsort(wanted)
        found = np.full(len(wanted), -1)
        for begin in range(0, len(self), self._PIECE):
            piece = np.array(self._keys[begin : begin + self._PIECE])
            first = np.searchsorted(wanted, piece, "left", sorter=order)
            last = np.searchsorted(wanted, piece, "right", sorter=order)
            for at in np.flatnonzero(last > first):
                found[order[first[at] : last[at]]] = begin + at
        if (found < 0).any():
            key = wanted[np.flatnonzero(found < 0)[0]]
            raise DataError(f"no node has the key {key}", "Give a key of the input.")
        return found


class _TextKeys(Keys):
    def __init__(
        self,
        offsets: NDArray[np.int64],
        text: NDArray[np.uint8],
        order: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(order)
        self._offsets, self._text = offsets, text

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def of(self, ids: NDArray[np.int64]) -> list[str]:
        begins, ends = self._offsets[ids], self._offsets[ids + 1]
        bad = np.flatnonzero((begins < 0) | (begins > ends) | (ends > len(self._text)))
        if len(bad):
            at = bad[0]
            span = f"bytes {begins[at]} to {ends[at]} of {len(self._text)}"
            raise _damaged(self._offsets, f"entry {ids[at]} is {span}")
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        try:
            return [self._text[begin:end].tobytes().decode() for begin, end in spans]
        except UnicodeDecodeError as error:
            raise _damaged(self._text, str(error)) from None

    def _comparable(self, key: Any) -> Any:
        return str(key).encode()


def _damaged(array: Any, what: str) -> DataError:
    path = getattr(array, "filename", "keys")  # of what is mapped
    return DataError(f"{path}: {what}", "The file is damaged: find where with gnnx verify.")


def open_keys(folder: Path, manifest: Manifest, node_type: str) -> Keys:
    """Open the keys of a node type.

    Parameters
    ----------
    folder
        Of the dataset.
    manifest
        Says what it holds.
    node_type
        Whose keys.

    Returns
    -------
    Keys
        The ids themselves where the input had no keys.
    """
    stem = f"nodes/{node_type}"
    order = _mapped(folder, manifest, f"{stem}/key_order")
    if f"{stem}/key_offsets" in manifest.arrays:
        return _text(folder, manifest, f"{stem}/key", order)
    keys = _mapped(folder, manifest, f"{stem}/key")
    moved = _mapped(folder, manifest, f"{stem}/id")
    if keys is None and moved is not None:
        return _MovedKeys(moved, None)
    return _IntegerKeys(range(manifest.nodes[node_type].count) if keys is None else keys, order)


def class_names(folder: Path, manifest: Manifest, node_type: str) -> list[str] | None:
    """Names of the classes, by number; None where the input had numbers."""
    stem = f"nodes/{node_type}/class"
    if f"{stem}_offsets" not in manifest.arrays:
        return None
    names = _text(folder, manifest, stem, None)
    return names.of(np.arange(len(names)))


def relation_names(folder: Path, manifest: Manifest, edges: str) -> list[str] | None:
    """Names of the relations of edges in a folder of the dataset, by number, where it has them."""
    if f"{edges}/relation_offsets" not in manifest.arrays:
        return None
    names = _text(folder, manifest, f"{edges}/relation", None)
    return names.of(np.arange(len(names)))


def _text(
    folder: Path, manifest: Manifest, stem: str, order: NDArray[np.int64] | None
) -> _TextKeys:
    offsets = _mapped(folder, manifest, f"{stem}_offsets")
    text = _mapped(folder, manifest, f"{stem}_bytes")
    assert offsets is not None
    assert text is not None
    return _TextKeys(offsets, text, order)


def _mapped(folder: Path, manifest: Manifest, name: str) -> NDArray[Any] | None:
    entry = manifest.arrays.get(name)
    if entry is None:
        return None
    dtype = disk_dtype(entry.dtype)
    if entry.num_bytes == 0:  # which cannot be mapped
        return np.zeros(entry.shape, dtype)
    return np.memmap(folder / f"{name}.npy", dtype, "r", HEADER_BYTES, entry.shape)
