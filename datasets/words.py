"""What the scripts here share: features from words, splits from keys, tables on disk."""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

WORD = re.compile(r"[a-z][a-z0-9+]+")


def hashed_words(texts: Sequence[str], width: int) -> np.ndarray:
    """Hash the words of each text into a row of length 1.

    A word adds 1 or -1 to one column, both told by its CRC-32 (Weinberger et al., 2009, "Feature
    hashing for large scale multitask learning"). A text without words is a row of zeros.
    """
    rows = np.zeros((len(texts), width), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in set(WORD.findall(text.lower())):
            code = zlib.crc32(word.encode())
            row[code % width] += 1 if code >> 31 else -1
    length = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.maximum(length, 1e-12)


def split_of(key: str) -> str:
    """Train (60 %), val or test (20 % each): a function of the key alone."""
    share = hashlib.sha256(key.encode()).digest()[0] / 256
    return "train" if share < 0.6 else "val" if share < 0.8 else "test"


def write_tables(
    out: Path,
    keys: Sequence[str],
    labels: Sequence[str],
    texts: Sequence[str],
    edges: Iterable[tuple[str, str, str]],
    width: int,
) -> None:
    """Write `nodes.parquet` (key, label, split, text, x) and `edges.parquet` (src, relation, dst).

    Edges are written ascending, each once.
    """
    out.mkdir(parents=True, exist_ok=True)
    cells = pa.array(hashed_words(texts, width).reshape(-1))
    nodes = pa.table(
        {
            "key": pa.array(keys),
            "label": pa.array(labels),
            "split": pa.array([split_of(key) for key in keys]),
            "text": pa.array(texts),
            "x": pa.FixedSizeListArray.from_arrays(cells, width),
        }
    )
    pq.write_table(nodes, out / "nodes.parquet")
    columns = zip(*sorted(set(edges)), strict=True)
    names = ("src", "relation", "dst")
    table = pa.table({name: pa.array(c) for name, c in zip(names, columns, strict=True)})
    pq.write_table(table, out / "edges.parquet")
    print(f"{out}: {len(nodes)} nodes, {len(table)} edges, {len(set(labels))} classes")
