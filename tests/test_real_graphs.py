"""Every real graph of docs/data.md is prepared by its command, or refused for its reason."""

import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnnx.cli import app

ROOT = Path(__file__).resolve().parents[1]
ROWS = re.findall(
    r"^\| ([^|]+) \| `(gnnx prepare [^`]+)` \| (\d)(?:: ([^|]*))? \|$",
    (ROOT / "docs/data.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
# Counts that the sets' own descriptions state.
NODES = {
    "Cora, Planetoid": 2708,
    "Cora, LINQS, unpacked": 2708,
    "Facebook pages, Parquet": 22470,
    "Facebook pages": 22470,
    "Twitch": 7126,
    "WN18RR": 40943,
    "FB15k-237": 14541,
    "nations": 14,
    "kinship": 104,
    "CollegeMsg": 1899,
    "bitcoin-alpha": 3783,
    "email-Eu-core": 1005,
    "wiki-Vote": 7115,
    "ca-GrQc": 4158,
    "US power grid": 4941,
    "BlogCatalog": 10312,
    "PyGOD books": 1418,
    "PyGOD disney": 124,
    "PyGOD enron": 13533,
    "airports of Brazil": 131,
    "airports of Europe": 399,
    "IGB layout": 10000,
    "DGL CSVDataset": 399,
}


def test_table_names_every_folder(shared_data):
    text = " ".join(command for _, command, *_ in ROWS)
    folders = [path for path in shared_data.iterdir() if path.is_dir()]
    folders += [path for path in (shared_data / "layouts").iterdir() if path.is_dir()]
    named = {"layouts/parquet-facebook"}  # by a recipe
    missing = [
        folder.relative_to(shared_data).as_posix()
        for folder in folders
        if f"$DATA/{folder.relative_to(shared_data).as_posix()}" not in text
    ]
    assert set(missing) <= named


@pytest.mark.parametrize(("name", "command", "code", "message"), ROWS, ids=[r[0] for r in ROWS])
def test_command_of_the_table(shared_data, tmp_path, monkeypatch, name, command, code, message):
    monkeypatch.chdir(ROOT)
    if "$UNPACKED" in command:
        with tarfile.open(shared_data / "cora-linqs/cora.tgz") as archive:
            archive.extractall(tmp_path / "unpacked", filter="data")
    places = {"$DATA": shared_data, "$UNPACKED": tmp_path / "unpacked", " OUT": f" {tmp_path}/out"}
    for sign, place in places.items():
        command = command.replace(sign, str(place))
        message = message.replace(sign, str(place))
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--quiet", "--json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, document.get("error", {}).get("cause", "")) == (
        int(code),
        document.get("error", {}).get("cause", "") if message else "",
    )
    if message:
        assert document["error"]["cause"].startswith(message.strip())
        assert not (tmp_path / "out").exists()
    elif name in NODES:
        assert document["num_nodes"] == NODES[name]
