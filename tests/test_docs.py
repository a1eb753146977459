"""Every snippet of the documentation runs; every command that it only shows exists."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import typer.main

from gnnx.prepare import prepare

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = {"python", "sh"}
SHOWN = {"console", "text", "json"}


class Snippet(NamedTuple):
    language: str
    line: int
    text: str


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Snippet(fence[1], text.count("\n", 0, fence.start()) + 1, fence[2]) for fence in fences]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the snippets speak of: a small graph with two easy classes."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 60)
    pairs = np.unique(rng.integers(0, 60, (400, 2)), axis=0)
    np.savetxt(tmp_path / "edges.csv", pairs, fmt="%d", delimiter=",")
    np.save(tmp_path / "y.npy", label)
    features = rng.normal(size=(60, 8)) + label[:, None]
    np.save(tmp_path / "x.npy", features.astype(np.float32))
    return tmp_path


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_snippets_run_in_the_order_of_the_page(page, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, line, text in snippets(page):
        assert language in RUN | SHOWN, f"{page.name}:{line}: fence without a known language"
        if language not in RUN:
            continue
        command = ["bash", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}:{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_shown_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    commands = [
        line.removeprefix("$ ")
        for snippet in snippets(page)
        if snippet.language == "console"
        for line in snippet.text.splitlines()
        if line.startswith("$ ")
    ]
    commands += re.findall(r"`((?:gnnx|make) [a-z][^`\n]*)`", text)
    for command in commands:
        _check_command(command)


def _check_command(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        for target in words:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), command
    elif program == "gnnx":
        from gnnx.cli import app

        verb = typer.main.get_command(app).commands[words[0]]
        known = {"--help", *(option for p in verb.params for option in p.opts)}
        assert {word for word in words if word.startswith("--")} <= known, command
    else:
        assert program in {"pip", "python"}, command


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_python_quickstart_is_short():
    (first, *_) = [s for s in snippets(ROOT / "README.md") if s.language == "python"]
    assert len(first.text.splitlines()) <= 10


def test_example_of_a_loop_of_ones_own(folder):
    names = {name: folder / f"{name}.npy" for name in ("x", "y")}
    prepare(folder / "edges.csv", folder / "graph", features=names["x"], labels=names["y"])
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/minibatch.py"), str(folder / "graph")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("epoch 0: loss ")
    assert last.startswith("test accuracy ")


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=_name)
def test_examples_are_short(script):
    assert len(script.read_text().splitlines()) < 120
