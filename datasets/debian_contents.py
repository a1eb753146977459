"""Debian's file contents as a typed graph: which file is in which package and directory.

    python datasets/debian_contents.py OUT
    gnnx prepare OUT/debian.toml debian --memory 1GiB
    gnnx train debian --model hetero-sage --memory 1GiB

Needs a Debian machine: ``apt-get update`` fetches about 55 MB of indices into OUT/lists, without
touching the machine's own, and they unpack to 700 MB. Then OUT holds arrays and a recipe:

- files: hashed words of the name, float16; the class is the section of the package that ships the
  file, none where packages of several sections do; split by package, so that no file of a test
  package is seen with its label in training
- directories: hashed words of the name; packages: nothing
- edges: file in_package package, file in_directory directory, directory parent directory, each kept
  in the other direction too

With ``--plain`` it is a graph of one type, which can be cut into parts: files, directories and
packages are numbered one after another, features are float32, zeros for packages, and

    gnnx prepare OUT/edges.npy debian --features OUT/x.npy --labels OUT/y.npy --train OUT/train.npy
        --val OUT/val.npy --test OUT/test.npy --undirected --memory 1GiB
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import subprocess
import zlib
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD = re.compile(r"[a-zA-Z][a-z0-9]+|[A-Z]{2,}")
SPLITS = ("train", "val", "test")
CHUNK, HEADER_BYTES = 1 << 16, 128
RECIPE = """\
[[nodes]]
type = "file"
count = {files}
features_file = "file_x.npy"
labels_file = "file_y.npy"
train_file = "train.npy"
val_file = "val.npy"
test_file = "test.npy"

[[nodes]]
type = "directory"
count = {directories}
features_file = "directory_x.npy"

[[nodes]]
type = "package"
count = {packages}

[[edges]]
type = ["file", "in_package", "package"]
files = "in_package.npy"
reverse = "ships"

[[edges]]
type = ["file", "in_directory", "directory"]
files = "in_directory.npy"
reverse = "has_file"

[[edges]]
type = ["directory", "parent", "directory"]
files = "parent.npy"
reverse = "child"

[options]
unlabeled = "ignore"
"""


def fetch(folder: Path) -> list[Path]:
    """Contents indices of the main archive, fetched by APT into a folder of their own."""
    lists = folder.resolve() / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::State::lists={lists}",
        "APT::Sandbox::User=root",
        "Acquire::GzipIndexes=false",
    ]
    targets = {
        "Contents-deb": "$(COMPONENT)/Contents-$(ARCHITECTURE)",
        "Contents-all": "$(COMPONENT)/Contents-all",
    }
    for name, key in targets.items():
        base = f"Acquire::IndexTargets::deb::{name}::"
        options += [
            f"{base}MetaKey={key}",
            f"{base}ShortDescription={name}",
            f"{base}Description=$(RELEASE)/$(COMPONENT) {name}",
            f"{base}KeepCompressed=false",
        ]
    words = [word for option in options for word in ("-o", option)]
    subprocess.run(["apt-get", *words, "update"], check=True, stdout=subprocess.DEVNULL)
    found = [
        path
        for path in sorted(lists.glob("*_main_Contents-*"))
        if "security" not in path.name and "updates" not in path.name
    ]
    if not found:
        raise SystemExit("no Contents index was fetched")
    return found


def lines(paths: list[Path]) -> Iterator[bytes]:
    """Lines of files, which APT may have kept packed."""
    for path in paths:
        if path.suffix == ".lz4":
            with subprocess.Popen(["lz4", "-dc", path], stdout=subprocess.PIPE) as process:
                yield from process.stdout
        else:
            with path.open("rb") as file:
                yield from file


@functools.lru_cache(1 << 18)
def hashed(name: str, dim: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Columns and values of a name: signed counts of its words, over the root of their number."""
    words = {word.lower() for word in WORD.findall(name)}
    if "." in name:
        words.add("." + name.rpartition(".")[2])
    row: dict[int, float] = {}
    for word in words:
        code = zlib.crc32(word.encode())
        row[code % dim] = row.get(code % dim, 0.0) + (1.0 if code >> 20 & 1 else -1.0)
    scale = max(1, len(row)) ** -0.5
    return tuple(row), tuple(value * scale for value in row.values())


class Features:
    """Rows of hashed names, written in chunks."""

    def __init__(self, path: Path, dim: int, dtype: str) -> None:
        self.file, self.dtype = path.open("wb"), np.dtype(dtype)
        self.file.write(bytes(HEADER_BYTES))
        self.dim, self.done = dim, 0
        self.names: list[str] = []

    def add(self, name: str) -> None:
        """Take in the next name."""
        self.names.append(name)
        if len(self.names) == CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write the rows of the names that were taken in."""
        chunk = np.zeros((len(self.names), self.dim), np.float32)
        for row, name in enumerate(self.names):
            columns, values = hashed(name, self.dim)
            chunk[row, columns] = values
        self.file.write(chunk.astype(self.dtype).data)
        self.done += len(chunk)
        self.names = []

    def close(self, num_more: int = 0) -> None:
        """Add rows of zeros, and write the header, now that the number of rows is known."""
        self.flush()
        self.file.truncate(self.file.tell() + num_more * self.dim * self.dtype.itemsize)
        self.file.seek(0)
        shape = (self.done + num_more, self.dim)
        form = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        text = repr(form).encode().ljust(HEADER_BYTES - 11) + b"\n"
        self.file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        self.file.close()


class Directories:
    """Directories by path, each with the id of the one above."""

    def __init__(self) -> None:
        self.ids, self.above, self.names = {"": 0}, array("q", [0]), [""]

    def of(self, path: str) -> int:
        """Give the id of a directory, and one to those above it."""
        found = self.ids.get(path)
        if found is None:
            parent, _, name = path.rpartition("/")
            above = self.of(parent)
            found = self.ids[path] = len(self.names)
            self.above.append(above)
            self.names.append(name)
        return found


def split_of(package: str) -> int:
    """60, 20 and 20 % of the packages, by their names alone."""
    share = hashlib.md5(package.encode(), usedforsecurity=False).digest()[0] / 256
    return 0 if share < 0.6 else 1 if share < 0.8 else 2


class Packages:
    """Packages by name, with their sections."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.sections: dict[str, int] = {}
        self.section, self.split = array("q"), array("b")

    def of(self, place: str) -> int:
        """Give the id of a package, written with its section."""
        section, _, name = place.rpartition("/")
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = len(self.section)
            section = section.rpartition("/")[2]
            self.section.append(self.sections.setdefault(section, len(self.sections)))
            self.split.append(split_of(name))
        return found


def build(paths: list[Path], out: Path, dim: int, limit: int, *, plain: bool) -> None:
    """Write arrays and, unless there is one type alone, a recipe."""
    count = sum(1 for _ in lines(paths))
    count = min(count, limit) if limit else count
    features = (
        Features(out / "x.npy", dim, "f4") if plain else Features(out / "file_x.npy", dim, "f2")
    )
    directories, packages = Directories(), Packages()
    sources, targets, inside = array("q"), array("q"), array("q")
    labels, splits = array("q"), array("b")
    for file, line in zip(range(count), lines(paths), strict=False):
        path, _, places = line.decode(errors="replace").rstrip("\n").rpartition(" ")
        folder, _, name = path.rstrip().rpartition("/")
        inside.append(directories.of(folder))
        features.add(name)
        shipped = [packages.of(place) for place in places.split(",")]
        sources.extend([file] * len(shipped))
        targets.extend(shipped)
        found = {packages.section[package] for package in shipped}
        labels.append(found.pop() if len(found) == 1 else -1)
        splits.append(packages.split[shipped[0]])
    y, split = np.array(labels), np.array(splits)
    for number, name in enumerate(SPLITS):
        np.save(out / f"{name}.npy", np.flatnonzero((split == number) & (y >= 0)))
    below, above = np.arange(1, len(directories.names)), np.array(directories.above)[1:]
    counts = {"files": count, "directories": len(below) + 1, "packages": len(packages.section)}
    if plain:
        for name in directories.names:
            features.add(name)
        features.close(counts["packages"])
        first = count + counts["directories"]  # of the packages
        ends = [
            (sources, first + np.array(targets)),
            (np.arange(count), count + np.array(inside)),
            (count + below, count + above),
        ]
        np.save(out / "edges.npy", np.concatenate([np.stack(pair) for pair in ends], axis=1))
        np.save(
            out / "y.npy", np.pad(y, (0, first + counts["packages"] - count), constant_values=-1)
        )
    else:
        features.close()
        names = Features(out / "directory_x.npy", dim, "f2")
        for name in directories.names:
            names.add(name)
        names.close()
        np.save(out / "file_y.npy", y)
        np.save(out / "in_package.npy", np.stack([sources, targets]))
        np.save(out / "in_directory.npy", np.stack([np.arange(count), inside]))
        np.save(out / "parent.npy", np.stack([below, above]))
        (out / "debian.toml").write_text(RECIPE.format(**counts))
    (out / "classes.json").write_text(json.dumps(list(packages.sections)))
    print(counts | {"in_package": len(sources), "classes": len(packages.sections)})


def main() -> None:
    """Parse the arguments, and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dim", type=int, default=64, help="width of features")
    parser.add_argument("--limit", type=int, default=0, help="files, the first of the indices")
    parser.add_argument("--plain", action="store_true", help="one type of nodes and of edges")
    parser.add_argument("--contents", type=Path, nargs="*", help="indices that are there already")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    build(given.contents or fetch(given.out), given.out, given.dim, given.limit, plain=given.plain)


if __name__ == "__main__":
    main()
