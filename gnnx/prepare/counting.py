"""How much an input holds, from headers and a sample of its text; nothing is written.

Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import check_plain, unreadable
from gnnx.prepare.head import head_of
from gnnx.prepare.matrix_market import is_matrix, read_head
from gnnx.prepare.text import is_text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

_EDGES = ("edge_index", "edges")
_FEATURES = ("attr_matrix", "features", "x", "node_features", "node_feat")


class Lines(NamedTuple):
    """Of a text file."""

    rows: int
    """Lines with data."""
    columns: int
    num_bytes: int
    """Unpacked."""
    exact: bool
    """Whether all of the file was read for it."""


@dataclasses.dataclass
class Counts:
    """What an input holds."""

    num_edges: int
    num_nodes: int | None = None
    """None where nobody says it: the ids are numbered anew."""
    text_bytes: int = 0
    """Of text to be parsed, unpacked."""
    scratch_bytes: int = 0
    """Scratch files, beside those of edges `from_text`."""
    features: tuple[int, int, int] | None = None
    """N, F and bytes of a stored number."""
    from_text: bool = False
    """Whether the edges are parsed into a scratch file."""
    exact: bool = True
    """Whether the counts are the input's own, not estimated from a sample."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is read of an input, before arrays are written, and goes to scratch files."""

    text_bytes: int = 0
    """Of text that is parsed, unpacked."""
    table_bytes: int = 0
    """Of files that DuckDB reads."""
    table_rows: int = 0
    """Of these files."""
    keys: int = 0
    """Of edges in it, which are dealt into buckets to be looked up."""
    scratch_bytes: int = 0
    """Scratch files made of it all."""
    host_bytes: int = 0
    """Of arrays held on the way."""
    exact: bool = True
    """Whether the counts are the input's own, not estimated from a sample."""

    def __add__(self, other: Reading) -> Reading:
        """Read the one and the other."""
        return Reading(
            self.text_bytes + other.text_bytes,
            self.table_bytes + other.table_bytes,
            self.table_rows + other.table_rows,
            self.keys + other.keys,
            self.scratch_bytes + other.scratch_bytes,
            max(self.host_bytes, other.host_bytes),
            self.exact and other.exact,
        )


@dataclasses.dataclass
class NodeCounts:
    """What is read and written of the nodes, or of those of one type."""

    count: int
    """N."""
    features: tuple[int, int, int] | None = None
    """N, F and bytes of a stored number."""
    label_bytes: int = 0
    """Of the labels of a node, as they are stored: 8 for its class, 1 for each of several."""
    has_splits: bool = False
    arrays: list[int] = dataclasses.field(default_factory=list)
    """Bytes of what else is kept: keys, the names of classes."""
    reading: Reading = Reading()
    has_text_keys: bool = False
    """Whether edges name them by text, not by integers."""
    key_bytes: float = 8.0
    """Of such a name, on average."""

    def take_features(self, path: Path) -> None:
        """Count a file of features; its rows are the nodes, whose number is known.

        Parameters
        ----------
        path
            `.npy` or text.
        """
        (_, width, size), text_bytes, _ = count_rows(path)
        self.features = self.count, width, size
        self.reading += Reading(
            text_bytes=text_bytes, scratch_bytes=4 * self.count * width * (text_bytes > 0)
        )

    def take_labels(self, path: Path) -> None:
        """Count a file of labels, likewise.

        Parameters
        ----------
        path
            `.npy` or text.
        """
        (_, width, _), text_bytes, _ = count_rows(path)
        self.label_bytes = label_bytes(width)
        self.reading += Reading(
            text_bytes=text_bytes, scratch_bytes=8 * self.count * width * (text_bytes > 0)
        )


@dataclasses.dataclass
class EdgeCounts:
    """What is read and written of the edges, or of those of one type."""

    count: int
    """E."""
    reading: Reading = Reading()
    values: dict[str, int] = dataclasses.field(default_factory=dict)
    """Bytes of what an edge carries, by name, as it is stored."""
    key_bytes: float = 8.0
    """Of the key of an end as text, on average."""


def count(path: Path) -> Counts:
    """Count what an input holds.

    Parameters
    ----------
    path
        An edge list, `.npy` edges, an `.npz` archive, Matrix Market, or an OGB, IGB or MAG240M
        folder.

    Returns
    -------
    Counts
        Of its edges, nodes and features.

    Raises
    ------
    DataError
        It cannot be read.
    UsageError
        An input of another kind, whose counts are known only when it has been read.
    """
    check_plain(path)
    if path.is_dir():
        found = _folder(path)
    elif path.suffix == ".npy":
        shape, _ = npy_header(path)
        found = Counts(_num_pairs(shape))
    elif path.suffix == ".npz":
        found = _archive(path)
    elif is_matrix(path):
        found = _matrix(path)
    elif is_text(path):
        lines = sample(path)
        found = Counts(lines.rows, None, lines.num_bytes, from_text=True, exact=lines.exact)
    else:
        found = None
    if found is None:
        raise UsageError(
            f"{path.name}: what it holds is known only when it has been read",
            "Leave out --dry-run, or give a recipe, an edge list, .npy, .npz, .mtx, an OGB folder.",
        )
    return found


def count_rows(path: Path) -> tuple[tuple[int, int, int], int, bool]:
    """Count a table with a row a node.

    Parameters
    ----------
    path
        `.npy` or text.

    Returns
    -------
    tuple
        N, F and bytes of a stored number; bytes of text; whether the numbers are exact.
    """
    check_plain(path)
    if path.suffix == ".npy":
        return _stored(*npy_header(path)), 0, True
    if not is_text(path):
        raise DataError(f"{path.name}: a table of unknown kind", "Give .npy, .csv, .tsv or .txt.")
    lines = sample(path)
    return (lines.rows, lines.columns, 4), lines.num_bytes, lines.exact


def label_bytes(width: int) -> int:
    """Bytes of the labels of a node, as they are stored: a class, or 0 or 1 of each of several."""
    return 8 if width == 1 else width


def pair_bytes(num_nodes: int | None) -> int:
    """Bytes of an edge that text gives; ids that are numbered anew are int64."""
    return 16 if num_nodes is None or num_nodes > 2**31 else 8


def sample(path: Path) -> Lines:
    """Estimate the lines of a text file from its first MiB.

    Parameters
    ----------
    path
        Plain or gzipped.

    Returns
    -------
    Lines
        Of the file as a whole.

    Raises
    ------
    DataError
        It cannot be read.
    """
    text, taken, exact = head_of(path)
    size = path.stat().st_size
    lines = text.split(b"\n")
    whole = lines if exact else lines[:-1]
    rows = [line for line in whole if line.strip() and not line.lstrip().startswith((b"#", b"%"))]
    header = bool(rows) and not any(map(_is_number, _fields(rows[0])))
    columns = len(_fields(rows[0])) if rows else 0
    scale = 1.0 if exact else size / max(1, taken)
    num_rows = len(rows) - header if exact else round(len(rows) * scale)
    return Lines(num_rows, columns, round(len(text) * scale), exact)


def _fields(line: bytes) -> list[bytes]:
    sign = next((sign for sign in (b",", b"\t", b";") if sign in line), None)
    return line.split(sign)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an `.npy` file, from its header alone."""
    try:
        with path.open("rb") as file:
            return _header(file, path.name)
    except OSError as error:
        raise unreadable(path, error) from None


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    head = io.BytesIO(file.read(1 << 16))
    try:
        version = np.lib.format.read_magic(head)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(head)
    except ValueError as error:
        raise DataError(
            f"{where}: not an .npy array: {error}", "Write it with numpy.save."
        ) from None
    return tuple(shape), dtype


def _num_pairs(shape: tuple[int, ...]) -> int:
    return max(shape) if len(shape) == 2 and 2 in shape else shape[0] if shape else 0


def _stored(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, int, int]:
    width = shape[1] if len(shape) > 1 else 1
    return shape[0], width, 4 if dtype.itemsize == 8 and dtype.kind == "f" else dtype.itemsize


def _archive(path: Path) -> Counts:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            heads = {}
            for info in infos:
                with archive.open(info) as member:
                    name = info.filename.removesuffix(".npy")
                    heads[name] = _header(member, f"{path.name}: {name}")
    except OSError as error:
        raise unreadable(path, error) from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path.name}: not a whole archive: {error}", "Fetch it again.") from None
    shapes = {name: shape for name, (shape, _) in heads.items()}
    pointers = next((p for p in ("", "adj_") if {f"{p}indptr", f"{p}indices"} <= {*shapes}), None)
    pairs = next((name for name in _EDGES if name in shapes), None)
    if pointers is not None:
        found = Counts(shapes[f"{pointers}indices"][0], shapes[f"{pointers}indptr"][0] - 1)
    elif pairs is not None:
        found = Counts(_num_pairs(shapes[pairs]))
    else:
        raise DataError(f"{path.name}: no edges in it", "Name them edge_index, or adj_indices.")
    table = next((name for name in _FEATURES if name in heads), None)
    if "attr_indptr" in heads and "attr_shape" in heads:
        found.features = shapes["attr_indptr"][0] - 1, _columns(path), 4
    elif table is not None:
        found.features = _stored(*heads[table])
    if found.num_nodes is None and found.features is not None:
        found.num_nodes = found.features[0]
    packed = (info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
    found.scratch_bytes = sum(packed)
    return found


def _columns(path: Path) -> int:
    """F of a sparse matrix in an archive: one small array is read."""
    with zipfile.ZipFile(path) as archive, archive.open("attr_shape.npy") as member:
        data = io.BytesIO(member.read())
    return int(np.lib.format.read_array(data)[1])


def _matrix(path: Path) -> Counts:
    lines = sample(path)
    banner, sizes_line = read_head(path)
    sizes = sizes_line.split()
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise DataError(f"{path.name}: no line of sizes", "Fetch the file again.")
    entries = int(sizes[2])
    mirrored = "general" not in banner.lower()
    return Counts(
        entries * (1 + mirrored),
        int(sizes[0]),
        lines.num_bytes,
        scratch_bytes=16 * entries,  # mirror images are made of them
        exact=not mirrored,  # loops are there once
    )


def _folder(folder: Path) -> Counts | None:
    raw = folder / "raw"
    if (raw / "edge.csv.gz").exists():
        edges = sample(raw / "edge.csv.gz")
        found = Counts(
            only_number(raw / "num-edge-list.csv.gz"),
            only_number(raw / "num-node-list.csv.gz"),
            edges.num_bytes,
            from_text=True,
        )
        if (raw / "node-feat.csv.gz").exists():
            lines = sample(raw / "node-feat.csv.gz")
            found.features = found.num_nodes or 0, lines.columns, 4
            found.text_bytes += lines.num_bytes
            found.scratch_bytes = 4 * found.features[0] * lines.columns
        return found
    if (raw / "data.npz").exists():
        return _archive(raw / "data.npz")
    for cites in ("paper__cites__paper", "paper___cites___paper"):
        edges_file = folder / "processed" / cites / "edge_index.npy"
        if edges_file.exists():
            features, _, _ = count_rows(folder / "processed" / "paper" / "node_feat.npy")
            shape, _ = npy_header(edges_file)
            return Counts(_num_pairs(shape), features[0], features=features)
    return None


def only_number(path: Path) -> int:
    """Read a file of OGB that holds one number."""
    try:
        with gzip.open(path, "rt") as file:
            return int(file.readline())
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError:
        raise DataError(f"{path.name}: no number in it", "Fetch the file again.") from None
