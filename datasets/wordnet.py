"""WordNet's synsets as a graph, from the files of Debian's package wordnet-base.

usage: apt-get download wordnet-base && dpkg-deb -x wordnet-base_*.deb unpacked
       python datasets/wordnet.py unpacked/usr/share/wordnet FOLDER [--width 128]
       gnnx prepare datasets/wordnet.toml OUT --root FOLDER

Nodes are synsets; edges are all pointers between them, named by their symbols. The label is the
lexicographer's file, features are hashed words of the gloss, not of the lemmas.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from words import write_tables

FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dictionary", type=Path, help="the folder with data.noun and its like")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    keys, labels, glosses, edges = [], [], [], []
    for name, kind in FILES.items():
        text = (options.dictionary / f"data.{name}").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("  "):  # the licence
                continue
            head, _, gloss = line.partition(" | ")
            offset, file, _, num_words, *rest = head.split()  # wndb(5)
            key = f"{kind}{offset}"
            keys.append(key)
            labels.append(file)
            glosses.append(gloss.strip())
            rest = rest[2 * int(num_words, 16) :]
            pointers = rest[1 : 1 + 4 * int(rest[0])]
            for symbol, target, pos, _ in zip(*[iter(pointers)] * 4, strict=True):
                edges.append((key, symbol, f"{'a' if pos == 's' else pos}{target}"))
    write_tables(options.folder, keys, labels, glosses, edges, options.width)


if __name__ == "__main__":
    main()
