"""The scripts of datasets/ on small stand-ins for what they read, prepared by their recipes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import gnnx
from gnnx.prepare import prepare

ROOT = Path(__file__).resolve().parents[1]


def run(*words, **environment):
    command = [sys.executable, *map(str, words)]
    env = {**os.environ, **environment}
    subprocess.run(command, check=True, env=env, capture_output=True, timeout=100)


def edges(folder):
    table = pq.read_table(folder / "edges.parquet").to_pydict()
    return list(zip(table["src"], table["relation"], table["dst"], strict=True))


PACKAGES = """Package: editor
Section: editors
Filename: pool/main/e/editor.deb
Depends: libc (>= 2.36), mail-agent | shell
Suggests: elsewhere
Description: writes text

Package: shell
Section: shells
Filename: pool/main/s/shell.deb
Pre-Depends: libc
Description: runs other programs
 in a loop

Package: libc
Section: libs
Filename: pool/main/l/libc.deb
Description: the C library

Package: post
Section: non-free/mail
Filename: pool/main/p/post.deb
Provides: mail-agent (= 1), letters
Description: sends mail

Package: elsewhere
Section: misc
Filename: pool/contrib/e/elsewhere.deb
"""


def test_debian_packages(tmp_path):
    (tmp_path / "apt-cache").write_text(f"#!/bin/sh\ncat <<'END'\n{PACKAGES}END\n")
    (tmp_path / "apt-cache").chmod(0o755)
    out = tmp_path / "tables"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    run(ROOT / "datasets/debian_packages.py", out, "--width", "8", PATH=path)
    assert edges(out) == [
        ("editor", "Depends", "libc"),
        ("editor", "Depends", "post"),
        ("editor", "Depends", "shell"),
        ("shell", "Pre-Depends", "libc"),
    ]
    report = prepare(ROOT / "datasets/debian-packages.toml", tmp_path / "out", root=out)
    assert (report.num_nodes, report.edges_stored, report.num_classes) == (4, 8, 4)
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.keys.of(np.arange(4)) == ["editor", "libc", "post", "shell"]
        assert dataset.class_names == ["editors", "libs", "mail", "shells"]
        length = np.linalg.norm(dataset.features.read(np.arange(4)).numpy(), axis=1)
    assert length == pytest.approx(1)


def test_wordnet(tmp_path):
    licence = "  1 This is a line of the licence.\n"
    files = {
        "noun": "00000001 03 n 01 entity 0 002 ~ 00000002 n 0000 = 00000009 a 0000 | that is\n"
        "00000002 05 n 02 cat 0 true_cat 1 001 @ 00000001 n 0000 | a feline\n",
        "verb": "00000003 29 v 01 run 0 001 + 00000002 n 0101 01 + 02 00 | go fast\n",
        "adj": "00000009 00 s 01 real 0 000 | being so\n",
        "adv": "00000010 02 r 01 really 0 001 \\ 00000009 s 0101 | in fact\n",
    }
    for name, text in files.items():
        (tmp_path / f"data.{name}").write_text(licence + text)
    out = tmp_path / "tables"
    run(ROOT / "datasets/wordnet.py", tmp_path, out, "--width", "8")
    assert edges(out) == [
        ("n00000001", "=", "a00000009"),
        ("n00000001", "~", "n00000002"),
        ("n00000002", "@", "n00000001"),
        ("r00000010", "\\", "a00000009"),
        ("v00000003", "+", "n00000002"),
    ]
    report = prepare(ROOT / "datasets/wordnet.toml", tmp_path / "out", root=out)
    assert (report.num_nodes, report.edges_stored, report.num_classes) == (
        5,
        8,
        30,
    )  # file 29 is the largest
    splits = pq.read_table(out / "nodes.parquet")["split"].to_pylist()
    assert report.train == splits.count("train")
