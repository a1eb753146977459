"""The beginning of a text file, plain or compressed."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from gnnx.errors import DataError
from gnnx.prepare.arrays import check_plain, unreadable

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

SAMPLE_BYTES = 1 << 20
"""Of a text, from which the rest of it is estimated."""


class Head(NamedTuple):
    """The beginning of a text file."""

    text: bytes
    """Unpacked."""
    taken: int
    """Bytes of the file that hold it."""
    exact: bool
    """Whether it is all of the file."""


def head_of(path: Path, num_bytes: int = SAMPLE_BYTES) -> Head:
    """Read the beginning of a text file.

    Parameters
    ----------
    path
        Plain, `.gz` or `.zst`.
    num_bytes
        To read of the text.

    Returns
    -------
    Head
        With the bytes of the file that hold it.

    Raises
    ------
    DataError
        It cannot be read.
    """
    check_plain(path)
    try:
        with path.open("rb") as raw:
            packed: IO[bytes] = raw
            if path.suffix == ".gz":
                packed = gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[assignment]
            elif path.suffix == ".zst":
                packed = pa.CompressedInputStream(raw, "zstd")
            text = packed.read(num_bytes)
            size, taken = path.stat().st_size, len(text)
            exact = len(text) < num_bytes or not packed.read(1)
            if packed is not raw:
                taken = min(size, raw.tell())
    except gzip.BadGzipFile as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise unreadable(path, error) if error.errno else _damaged(path, error) from None
    except (EOFError, zlib.error, pa.ArrowInvalid) as error:
        raise _damaged(path, error) from None
    return Head(text, taken, exact)


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path.name}: cannot be decompressed: {error}", "Fetch the file again.")
