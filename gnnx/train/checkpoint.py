"""A training's state on disk: whole after a kill at any moment, loaded without running code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from gnnx.errors import DataError, ResourceError
from gnnx.store import sync_folder

_FILE = "checkpoint.pt"
_VERSION = 6
_DAMAGES = (
    RuntimeError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,  # zipfile: a compression that it does not know
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)
_AGAIN = "Delete it and train again."


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What inference needs of a training's state."""

    config: dict[str, Any] | None
    """Of a model of gnnx.nn; None where the model is the user's own."""
    weights: dict[str, torch.Tensor]
    """The best on validation."""
    num_epochs: int
    fingerprint: str


def load_checkpoint(folder: Path | str) -> Checkpoint:
    """Best weights of a training.

    Parameters
    ----------
    folder
        As given to `Trainer`.

    Returns
    -------
    Checkpoint
        Loaded without unpickling code.

    Raises
    ------
    DataError
        There is no checkpoint, or it is damaged or of another version.
    """
    content = read_state(folder)
    return Checkpoint(
        content["settings"]["model"],
        content["best_weights"],
        len(content["epochs"]),
        content["settings"]["fingerprint"],
    )


def has_state(folder: Path | str) -> bool:
    """Whether a training has left its state in a folder."""
    return _path(folder).exists()


def write_state(folder: Path | str, state: dict[str, Any]) -> None:
    """Replace the state in a folder by another, or leave it as it is.

    Parameters
    ----------
    folder
        Made where it is absent.
    state
        Tensors, numbers, strings, and containers of them.

    Raises
    ------
    ResourceError
        The file system refuses.
    """
    path = _path(folder)
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save({"version": _VERSION} | state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)  # atomic: a kill leaves the old state or the new one
        sync_folder(path.parent)
    except OSError as error:
        raise ResourceError(
            f"{path}: {error.strerror or error}", "Free some space, or give another folder."
        ) from None
    finally:
        with contextlib.suppress(OSError):  # an interrupt leaves nothing behind
            partial.unlink()


def read_state(folder: Path | str) -> dict[str, Any]:
    """State that `write_state` has left.

    Parameters
    ----------
    folder
        As given there.

    Returns
    -------
    dict
        As given there; tensors on the CPU.

    Raises
    ------
    DataError
        There is none, or it is damaged or of another version.
    ResourceError
        The file system refuses.
    """
    path = _path(folder)
    if not path.exists():
        raise DataError(f"{path}: no such checkpoint", "Train with --checkpoint DIR first.")
    try:
        with zipfile.ZipFile(path) as archive:
            torn = archive.testzip()  # torch writes checksums, and does not look at them
        state: object = None if torn else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ResourceError(
            f"{path}: {error.strerror or error}", "Check the file's permissions and the disk."
        ) from None
    except _DAMAGES as error:
        raise DataError(
            f"{path}: damaged checkpoint ({type(error).__name__})",
            _AGAIN,
        ) from error
    if torn:
        raise DataError(f"{path}: damaged checkpoint (checksum of {torn})", _AGAIN)
    version = state.get("version") if isinstance(state, dict) else None
    if not isinstance(state, dict) or version != _VERSION:
        raise DataError(
            f"{path}: checkpoint version {version}, {_VERSION} expected",
            "Train again with this version of gnnx.",
        )
    return state


def _path(folder: Path | str) -> Path:
    return Path(folder) / _FILE
