"""Real graphs, damaged in one place: refused by a line that says where, and left alone."""

import gzip
import hashlib
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gnnx.cli import app

ROOT = Path(__file__).resolve().parents[1]


def cut(path, part=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def replace(path, old, new):
    text = path.read_text(encoding="latin1")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="latin1")


def repack(path, change):
    """Change the text of a gzipped file."""
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def rewrite(path, change):
    """Change an array in place."""
    array = np.load(path)
    np.save(path, change(array))


def rezip(path, **changes):
    """Change arrays of an archive."""
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    np.savez(path, **arrays)


def put(array, place, value):
    array[place] = value
    return array


FACEBOOK = "datasets/facebook-pages-csv.toml OUT --root COPY"
# What is copied, what is done to a file of it, and the command.
CASES = {
    "a pickle, cut": (
        "cora-planetoid",
        lambda d: cut(d / "ind.cora.graph"),
        "COPY/ind.cora.graph OUT --pickles",
    ),
    "a file of six, missing": (
        "cora-planetoid",
        lambda d: (d / "ind.cora.ty").unlink(),
        "COPY/ind.cora.graph OUT --pickles",
    ),
    "a word among test ids": (
        "cora-planetoid",
        lambda d: replace(d / "ind.cora.test.index", "2692", "two"),
        "COPY/ind.cora.graph OUT --pickles",
    ),
    "an archive, cut": (
        "amazon-photo",
        lambda d: cut(d / "amazon_electronics_photo.npz", 0.9),
        "COPY/amazon_electronics_photo.npz OUT",
    ),
    "an archive, a byte flipped": (
        "heterophilous",
        lambda d: flip(d / "actor.npz", 100_000),
        "COPY/actor.npz OUT",
    ),
    "an edge to a node that is not there": (
        "heterophilous",
        lambda d: rezip(d / "minesweeper.npz", edges=lambda e: put(e, (7, 1), 10_000)),
        "COPY/minesweeper.npz OUT",
    ),
    "a label too few": (
        "heterophilous",
        lambda d: rezip(d / "minesweeper.npz", node_labels=lambda y: y[:-1]),
        "COPY/minesweeper.npz OUT",
    ),
    "a label that is no class": (
        "heterophilous",
        lambda d: rezip(d / "minesweeper.npz", node_labels=lambda y: put(y, 3, -7)),
        "COPY/minesweeper.npz OUT",
    ),
    "row pointers that descend": (
        "polblogs-npz",
        lambda d: rezip(d / "polblogs.npz", adj_indptr=lambda p: put(p, 9, 0)),
        "COPY/polblogs.npz OUT",
    ),
    "JSON, cut": ("facebook-pages", lambda d: cut(d / "facebook.json"), FACEBOOK),
    "a field too many in CSV": (
        "facebook-pages",
        lambda d: replace(d / "facebook_target.csv", "\n7,", "\n7,,"),
        FACEBOOK,
    ),
    "an edge of an unknown key": (
        "facebook-pages",
        lambda d: replace(d / "facebook_edges.csv", "\n0,", "\nzero,"),
        FACEBOOK,
    ),
    "gzip, cut": (
        "layouts/ogb-raw-cora",
        lambda d: cut(d / "raw/edge.csv.gz"),
        "COPY OUT",
    ),
    "fewer edges than declared": (
        "layouts/ogb-raw-cora",
        lambda d: repack(d / "raw/edge.csv.gz", lambda t: t[: t.rindex(b"\n", 0, -1) + 1]),
        "COPY OUT",
    ),
    "a feature too few": (
        "layouts/ogb-raw-cora",
        lambda d: repack(d / "raw/node-feat.csv.gz", lambda t: t.replace(b",0.0\n", b"\n", 1)),
        "COPY OUT",
    ),
    "a word among the labels": (
        "layouts/ogb-raw-cora",
        lambda d: repack(d / "raw/node-label.csv.gz", lambda t: b"three" + t[1:]),
        "COPY OUT",
    ),
    "a node of a split that is not there": (
        "layouts/ogb-raw-cora",
        lambda d: repack(d / "split/planetoid/valid.csv.gz", lambda t: t + b"2708\n"),
        "COPY OUT",
    ),
    "features, cut": (
        "layouts/igb-minesweeper",
        lambda d: cut(d / "processed/paper/node_feat.npy"),
        "COPY OUT",
    ),
    "edges of decimal numbers": (
        "layouts/mag240m-debian",
        lambda d: rewrite(
            d / "processed/paper___cites___paper/edge_index.npy", lambda e: e.astype(np.float64)
        ),
        "COPY OUT",
    ),
    "a feature that is not finite": (
        "layouts/mag240m-debian",
        lambda d: rewrite(
            d / "processed/paper/node_feat.npy", lambda x: put(x, (5, 2), np.float16("inf"))
        ),
        "COPY OUT",
    ),
    "YAML that is none": (
        "layouts/dglcsv-europe-airports",
        lambda d: (d / "meta.yaml").write_text("node_data: ["),
        "COPY OUT",
    ),
    "a key that is there twice": (
        "layouts/dglcsv-europe-airports",
        lambda d: replace(d / "nodes.csv", "\n2,", "\n3,"),
        "COPY OUT",
    ),
    "an edge with one end": (
        "snap",
        lambda d: replace(d / "email-Eu-core.txt", "\n2 3\n", "\n2\n"),
        "COPY/email-Eu-core.txt OUT",
    ),
    "zeros in an edge list": (
        "snap",
        lambda d: (d / "wiki-Vote.txt").write_bytes(
            (d / "wiki-Vote.txt").read_bytes()[:50_000] + b"\0" * 4096
        ),
        "COPY/wiki-Vote.txt OUT",
    ),
    "fewer entries than declared": (
        "matrix-market",
        lambda d: cut(d / "jagmesh7.mtx"),
        "COPY/jagmesh7.mtx OUT",
    ),
    "Parquet, cut": (
        "layouts/parquet-facebook",
        lambda d: cut(d / "edges.parquet"),
        "COPY/../facebook.toml OUT --root COPY",
    ),
    "a triple of two": (
        "wn18rr",
        lambda d: replace(d / "valid.txt", "\t_hypernym\t", "\t"),
        "datasets/wn18rr.toml OUT --root COPY",
    ),
    "MATLAB, cut": (
        "blogcatalog-mat",
        lambda d: cut(d / "blogcatalog.mat"),
        "COPY/blogcatalog.mat OUT",
    ),
    "GML, cut": ("gexf-gml", lambda d: cut(d / "polblogs.gml"), "COPY/polblogs.gml OUT"),
    "a torch file, cut": (
        "pyg-pt",
        lambda d: cut(d / "books.pt.zip"),
        "COPY/books.pt.zip OUT --pickles",
    ),
}  # fmt: skip


FIRST_LINES = {
    "a pickle, cut":
        "ind.cora.graph: cannot be read: Ran out of input",
    "a file of six, missing":
        "COPY/ind.cora.ty: No such file or directory",
    "a word among test ids":
        "ind.cora.test.index:1: 'two' is not an integer id",
    "an archive, cut":
        "amazon_electronics_photo.npz: not a whole .npz archive: its directory "
        "is missing from the end of its 1592001 bytes",
    "an archive, a byte flipped":
        "actor.npz: node_features: cannot be unpacked: Bad CRC-32 for file "
        "'node_features.npy'",
    "an edge to a node that is not there":
        "minesweeper.npz: edges: edge 7: node 10000 is outside the 10000 nodes",
    "a label too few":
        "minesweeper.npz: node_features: 10000 nodes, minesweeper.npz: "
        "node_labels: 9999",
    "a label that is no class":
        "minesweeper.npz: node_labels: label -7 of node 3 is not a class from 0 "
        "to 1048575",
    "row pointers that descend":
        "polblogs.npz: adj_indptr: entry 9 is 0: rows do not ascend from 0 to "
        "19025",
    "JSON, cut":
        "facebook.json: not JSON: Expecting value: line 1 column 1044384 (char "
        "1044383)",
    "a field too many in CSV":
        "facebook_target.csv:9: Expected Number of Columns: 4 Found: 5",
    "an edge of an unknown key":
        "facebook_edges.csv: 1 of 171002 edges name nodes that are not in the "
        "node table, such as 'zero' (facebook_edges.csv:2)",
    "gzip, cut":
        "edge.csv.gz: cannot be decompressed: Compressed file ended before the "
        "end-of-stream marker was reached",
    "fewer edges than declared":
        "edge.csv.gz: 10857 edges, 10858 declared",
    "a feature too few":
        "node-feat.csv.gz:2: 1432 columns expected, 1433 found",
    "a word among the labels":
        "node-label.csv.gz:1: 'three' is not a number",
    "a node of a split that is not there":
        "valid.csv.gz:501: node 2708 is outside the 2708 nodes",
    "features, cut":
        "node_feat.npy: 280128 bytes expected, 140064 found",
    "edges of decimal numbers":
        "edge_index.npy: edges are float64, not integer ids",
    "a feature that is not finite":
        "node_feat.npy: 1 NaN or infinite value, in column 2, node 5",
    "YAML that is none":
        "meta.yaml: not YAML: while parsing a flow node expected the node "
        "content, but found '<stream end>' in \"<unicode string>\", line 1, column "
        "13: node_data: [ ^",
    "a key that is there twice":
        "nodes.csv: key 3 is there 2 times",
    "an edge with one end":
        "email-Eu-core.txt:2: 2 columns expected, fewer found",
    "zeros in an edge list":
        "wiki-Vote.txt:6045: "
        "'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x0"
        "0\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x0"
        "0\\x00\\x00\\x00\\x00…' is not an integer id",
    "fewer entries than declared":
        "jagmesh7.mtx: 2229 entries, 4294 declared",
    "Parquet, cut":
        "edges.parquet: No magic bytes found at end of file it",
    "a triple of two":
        "valid.txt:1: Expected Number of Columns: 3 Found: 2",
    "MATLAB, cut":
        "blogcatalog.mat: cannot be read: could not read bytes",
    "GML, cut":
        "polblogs.gml: networkx cannot read it: expected ']', found EOF at "
        "(40143, 1)",
    "a torch file, cut":
        "books.pt.zip: cannot be read: File is not a zip file",
}  # fmt: skip


def digest(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", CASES)
def test_first_line_of_a_damaged_copy(shared_data, tmp_path, monkeypatch, name):
    monkeypatch.chdir(ROOT)
    folder, damage, command = CASES[name]
    copy = tmp_path / "copy"
    shutil.copytree(shared_data / folder, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "facebook.toml").write_text(
        'nodes = {files = "nodes.parquet", key = "facebook_id"}\nedges = {files = "edges.parquet"}'
    )
    damage(copy)
    before = digest(tmp_path)
    words = shlex.split(command.replace("COPY", str(copy)).replace("OUT", str(tmp_path / "out")))
    result = CliRunner().invoke(app, ["prepare", *words, "--quiet"])
    assert isinstance(result.exception, SystemExit | None)  # anything else would be a traceback
    lines = result.stderr.splitlines()
    assert lines[0] == f"error: {FIRST_LINES[name].replace('COPY', str(copy))}"
    assert (len(lines), result.stdout, result.exit_code) == (2, "", 3)
    assert digest(tmp_path) == before
    assert not (tmp_path / "out").exists()
