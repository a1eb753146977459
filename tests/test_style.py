"""The rules of the source tree that no linter holds."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import gnnx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "gnnx").rglob("*.py"))
SOURCES = PACKAGE + sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 800
VAGUE = {"utils", "util", "helpers", "common", "misc", "impl"}
# The public list: a name is added here on purpose, or not at all.
PUBLIC = """
    Block Budget Dataset FeatureCache FeatureStore Graph GraphStore HeteroBatch HeteroBlock
    HeteroLoader HeteroSampler Ledger Loader MiniBatch NeighborSampler PyGConv Tier Trainer
    evaluate from_dgl from_networkx from_pyg from_scipy infer nn open ops to_dgl
"""


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_source_file(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") < MAX_LINES, f"{MAX_LINES} lines or more: split it by concept"
    assert ast.get_docstring(tree), "no docstring: say in a line what the module is for"
    parts = {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & VAGUE, "a name that says nothing: call it after its concept"


@pytest.mark.parametrize("path", PACKAGE, ids=_name)
def test_only_the_command_line_prints(path):
    if path.is_relative_to(ROOT / "gnnx" / "cli"):
        return
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    lines = [call.lineno for call in calls if getattr(call.func, "id", None) == "print"]
    assert lines == [], f"print in lines {lines}"


def test_public_list_is_frozen():
    assert sorted(gnnx.__all__) == sorted(PUBLIC.split())


def test_kernels_know_no_torch():
    """They are compiled by NVRTC and by a host compiler, neither of which has torch's headers."""
    include = re.compile(r'#\s*include\s*[<"](torch|ATen|c10)\b')
    sources = [*ROOT.glob("cuda/**/*.cu"), *ROOT.glob("cuda/**/*.cuh")]
    assert [_name(path) for path in sources if include.search(path.read_text())] == []


def test_no_machine_paths():
    """What is checked in works wherever it is checked out."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    absolute = re.compile(rb"(?<![\w.}$])/(?:home|root|work|Users)/\w")
    assert [_name(p) for p in paths if p.is_file() and absolute.search(p.read_bytes())] == []
