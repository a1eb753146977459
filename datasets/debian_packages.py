"""Packages of Debian's main archive as a graph, from the lists that `apt-get update` leaves.

usage: apt-get update && python datasets/debian_packages.py FOLDER [--width 128]
       gnnx prepare datasets/debian-packages.toml OUT --root FOLDER

Nodes are packages; an edge goes from a package to one that it depends on, recommends, suggests, …,
or, where nobody is called so, to those that provide it, up to 20. The label is the section,
features are hashed words of the one-line description.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from words import write_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances")
MOST_PROVIDERS = 20
NAME = re.compile(r"\s*([a-z0-9][a-z0-9.+-]*)")


def paragraphs() -> Iterator[dict[str, str]]:
    """Read the fields of every package that apt knows."""
    done = subprocess.run(
        ["apt-cache", "dumpavail"], capture_output=True, check=True, text=True, errors="replace"
    )
    for text in done.stdout.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            if line.startswith((" ", "\t")):
                fields[name] = fields.get(name, "") + line
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def names(field: str) -> list[str]:
    """Names in a list of relations, alternatives included."""
    found = (NAME.match(item) for item in re.split(r"[,|]", field))
    return [match[1] for match in found if match]


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    packages: dict[str, dict[str, str]] = {}
    for fields in paragraphs():
        if fields.get("Filename", "").startswith("pool/main/") and "Section" in fields:
            packages.setdefault(fields["Package"], fields)
    keys = sorted(packages)
    providers = defaultdict(list)
    for key in keys:
        for name in names(packages[key].get("Provides", "")):
            providers[name].append(key)
    edges = []
    for key in keys:
        for relation in RELATIONS:
            for name in names(packages[key].get(relation, "")):
                ends = [name] if name in packages else providers.get(name, [])
                if len(ends) <= MOST_PROVIDERS:
                    edges += [(key, relation, end) for end in ends]
    sections = [packages[key]["Section"].rpartition("/")[2] for key in keys]
    texts = [
        packages[key].get("Description", packages[key].get("Description-en", "")) for key in keys
    ]
    write_tables(options.folder, keys, sections, texts, edges, options.width)


if __name__ == "__main__":
    main()
