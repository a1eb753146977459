"""Preparing and partitioning where the machine fails: kills, full disks, two at once, damage.

Rows H12 to H22 of what users meet; those of parts and their counts are in test_partition.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gnnx
from gnnx.errors import DataError, ResourceError
from gnnx.partition import partition
from gnnx.prepare import _kernels, prepare

NUM_NODES, NUM_EDGES = 5000, 60_000
CLI = [sys.executable, "-m", "gnnx"]


def write_inputs(folder, num_nodes=NUM_NODES, num_edges=NUM_EDGES, width=16):
    """Edges in text, features and labels."""
    rng = np.random.default_rng(0)
    np.savetxt(folder / "e.txt", rng.integers(0, num_nodes, (num_edges, 2)), "%d")
    np.save(folder / "x.npy", rng.normal(size=(num_nodes, width)).astype(np.float32))
    np.save(folder / "y.npy", rng.integers(0, 4, num_nodes))


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_inputs(folder)
    return folder


def prepared(inputs, out, **options):
    options = {"features": inputs / "x.npy", "labels": inputs / "y.npy", **options}
    prepare(inputs / "e.txt", out, undirected=True, **options)
    return out


def fingerprint(path):
    with gnnx.open(path) as dataset:
        return dataset.fingerprint


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


# H20: killed half-way

# Runs a job once undisturbed, then kills it at some of its events and runs it again. Files change
# at no other moments than where the process asks for memory or calls the system, so these are the
# events. Each trial is a fork: it begins with all kernels loaded.
TRIALS = """
import json, os, random, signal, sys
from pathlib import Path
import gnnx
from gnnx.errors import DataError
from gnnx.memory import Ledger
from gnnx.partition import partition
from gnnx.prepare import prepare

verb, folder, num_trials = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
events, fatal = 0, None

def counted(owner, name):
    real = getattr(owner, name)
    def call(*args, **options):
        global events
        events += 1
        if events == fatal:
            if name in {"pwrite", "pwritev"}:  # half of it
                real(args[0], args[1][: len(args[1]) // 2], args[2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    setattr(owner, name, call)

for name in ("pwrite", "pwritev", "fsync", "open", "preadv"):
    counted(os, name)
for name in ("rename", "mkdir", "unlink"):
    counted(Path, name)
counted(Ledger, "empty")

def job(out):
    if verb == "prepare":
        prepare(folder / "in/e.txt", out, features=folder / "in/x.npy",
                labels=folder / "in/y.npy", undirected=True, memory="3MiB")
    else:
        partition(folder / "graph", out, num_parts=3, method=verb)

def fingerprint(out):
    with gnnx.open(out) as dataset:
        return dataset.fingerprint

job(folder / "whole")
total, trials, draw = events, [], random.Random(0)
for trial in range(num_trials):
    out, moment = folder / f"out-{trial}", draw.randint(1, total)
    child = os.fork()
    if child == 0:
        events, fatal = 0, moment
        job(out)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    partial = folder / f".out-{trial}.partial"
    journal, x = partial / "journal.json", partial / "nodes/node/x.npy"
    stages = list(json.loads(journal.read_text())["stages"]) if journal.exists() else []
    # in its last moments a run removes what only its stages read, and then begins anew
    whole = verb == "prepare" or (partial / "interim/part.npy").exists()
    kept = x.stat().st_ino if whole and {"features", "nodes"} & set(stages) else None
    try:
        gnnx.open(out)
        message = ""
    except DataError as error:
        message = str(error)
    again = os.fork()
    if again == 0:
        if not out.exists():
            job(out)
        os._exit(0)
    trials.append({
        "moment": moment / total, "killed": os.WTERMSIG(status), "stages": stages,
        "message": message, "ended": os.waitpid(again, 0)[1],
        "same": fingerprint(out) == fingerprint(folder / "whole"),
        "kept": kept in (None, (out / "nodes/node/x.npy").stat().st_ino),
    })
print(json.dumps(trials))
"""


def killed(verb, folder, num_trials):
    """Kill at random moments; every rerun goes on from the last whole stage to the same bytes."""
    if verb != "prepare":
        prepared(folder / "in", folder / "graph")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRIALS, verb, str(folder), str(num_trials)],
        capture_output=True,
        text=True,
        timeout=110 if num_trials < 10 else 600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    trials = json.loads(run.stdout)
    assert len(trials) == num_trials
    for trial in trials:
        assert trial["killed"] == signal.SIGKILL, trial
        assert trial["ended"] == 0, trial
        assert trial["same"], trial
        assert trial["kept"], trial
        done = ", ".join(trial["stages"]) or "none"
        assert (
            not trial["message"]  # it died when all was done
            or f"stages done: {done}" in trial["message"]
            or "no such folder" in trial["message"]
        ), trial
    left = {name for name in names(folder) if name.startswith(".")}
    assert all(name.endswith(".lock") for name in left), left
    return trials


@pytest.mark.parametrize("verb", ["prepare", "stream"])
def test_a_killed_run_is_gone_on_with_h20(inputs, tmp_path, verb):
    killed(verb, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["prepare", "stream", "quality"])
def test_20_killed_runs_are_gone_on_with_h20(inputs, tmp_path, verb):
    if verb == "quality":
        pytest.importorskip("kaminpar")
    trials = killed(verb, tmp_path, 20)
    first = "parts" if verb != "prepare" else "features"
    assert 3 <= sum(first in trial["stages"] for trial in trials) <= 19
    assert sum("incomplete" in trial["message"] for trial in trials) >= 10


def interrupted(inputs, out, monkeypatch, error):
    """Run until the edges are built, and end there with an error."""

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("gnnx.prepare.build.CsrBuilder.write", fail)
        with pytest.raises(type(error)):
            prepared(inputs, out)


def test_what_lacks_room_keeps_its_stages_and_all_else_leaves_nothing(
    inputs, tmp_path, monkeypatch, caplog
):
    out = tmp_path / "out"
    interrupted(inputs, out, monkeypatch, KeyboardInterrupt())
    assert names(tmp_path) == ["in"]
    interrupted(inputs, out, monkeypatch, ResourceError("no room", "Make some."))
    assert names(tmp_path) == [".out.partial", "in"]
    assert "the next run need not do features, nodes again" in caplog.text
    with pytest.raises(DataError, match=r"incomplete: .*stages done: features, nodes") as caught:
        gnnx.open(out)
    assert caught.value.remedy == "Give the same command again: it goes on from there."
    with monkeypatch.context() as patch:
        patch.setattr("gnnx.prepare.build.write_features", None)  # it is not called
        prepared(inputs, out)
    assert names(tmp_path) == ["in", "out"]
    assert fingerprint(out) == fingerprint(prepared(inputs, tmp_path / "whole"))


@pytest.mark.parametrize("change", ["options", "input", "journal", "array", "checksums"])
def test_what_is_not_the_same_is_not_gone_on_with(inputs, tmp_path, monkeypatch, change):
    out, options = tmp_path / "out", {}
    interrupted(inputs, out, monkeypatch, ResourceError("no room", "Make some."))
    partial = tmp_path / ".out.partial"
    stored = partial / "nodes/node/x.npy"
    before = stored.stat().st_ino
    keep = stored.open("rb")  # so that the number is not given to another file
    if change == "options":
        options = {"seed": 1}
    elif change == "input":
        np.save(inputs / "x.npy", np.load(inputs / "x.npy") + 1)
    elif change == "journal":
        text = (partial / "journal.json").read_text()
        (partial / "journal.json").write_text(text[: len(text) // 2])
    elif change == "array":
        os.truncate(stored, stored.stat().st_size - 4)
    else:
        stored.with_suffix(".crc").unlink()
    (partial / "nodes" / "stray.npy").touch()
    prepared(inputs, out, **options)
    assert (out / "nodes/node/x.npy").stat().st_ino != before
    keep.close()
    assert fingerprint(out) == fingerprint(prepared(inputs, tmp_path / "whole", **options))
    assert not (out / "nodes/stray.npy").exists()
    assert gnnx.store.verify(out) == []


def test_inputs_of_a_recipe_count(tmp_path):
    from gnnx.prepare.origin import origin_of

    (tmp_path / "e.csv").write_text("src,dst\n0,1\n")
    (tmp_path / "r.toml").write_text('[edges]\nfiles = ["e*.csv"]\n')
    arguments = {"source": tmp_path / "r.toml", "root": None, "out": 1, "memory": 2}
    first = origin_of(arguments)
    assert origin_of({**arguments, "out": 5, "memory": 6}) == first
    assert origin_of({**arguments, "seed": 1}) != first
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,0\n")
    second = origin_of(arguments)
    assert second != first
    (tmp_path / "e2.csv").write_text("src,dst\n0,1\n")
    assert origin_of(arguments) not in {first, second}


# H19, H22: full and read-only disks


@pytest.fixture
def in_namespace():
    """Run Python where it may mount; what it mounts is seen by it alone."""
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounts need a namespace of their own, which is not allowed here")

    def run(script, *words):
        done = subprocess.run(
            ["unshare", "-m", sys.executable, "-c", script, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


FULL = """
import json, shutil, subprocess, sys
from pathlib import Path
import gnnx
from gnnx.errors import GnnxError
from gnnx.prepare import prepare

inputs, disk = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", disk], check=True)
found = []

def attempt():
    try:
        prepare(inputs / "e.npy", disk / "out", features=inputs / "x.npy")
    except GnnxError as error:
        found.append([error.exit_code, str(error), sorted(path.name for path in disk.iterdir())])

attempt()
real = shutil.disk_usage
shutil.disk_usage = lambda path: real(path)._replace(free=1 << 40)
attempt()
x = disk / ".out.partial/nodes/node/x.npy"
before = x.stat().st_ino
subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
attempt()
with gnnx.open(disk / "out") as dataset:
    found.append([dataset.fingerprint, (disk / "out/nodes/node/x.npy").stat().st_ino == before])
print(json.dumps(found))
"""


def test_a_full_disk_is_told_before_and_survived_h19(inputs, tmp_path, in_namespace):
    np.save(inputs / "e.npy", np.random.default_rng(0).integers(0, NUM_NODES, (400_000, 2)))
    (tmp_path / "disk").mkdir()
    refused, full, (found, gone_on) = in_namespace(FULL, inputs, tmp_path / "disk")
    need = 8 * (NUM_NODES + 1) + 4 * 16 * NUM_NODES + 4 * 400_000
    assert refused[0] == 4
    assert f"{tmp_path}/disk/out: {need} bytes to write, 1" in refused[1]
    assert refused[2] == []
    assert full[0] == 4
    assert "indices.npy: No space left on device writing" in full[1]
    assert full[2] == [".out.partial"]
    assert gone_on
    prepare(inputs / "e.npy", tmp_path / "whole", features=inputs / "x.npy")
    assert found == fingerprint(tmp_path / "whole")


READ_ONLY = """
import json, subprocess, sys
from pathlib import Path
import gnnx
from gnnx.errors import GnnxError
from gnnx.partition import partition
from gnnx.prepare import prepare

inputs, path, out = map(Path, sys.argv[1:])
subprocess.run(["mount", "--bind", path, path], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
partition(path / "graph", out, num_parts=3, method="stream")
found = []
for make in (lambda: prepare(inputs / "e.txt", path / "new", num_nodes=5000),
             lambda: partition(path / "graph", path / "parts", num_parts=3, method="stream")):
    try:
        make()
    except GnnxError as error:
        found.append([error.exit_code, str(error)])
print(json.dumps([gnnx.store.verify(path / "graph"), found]))
"""


def test_a_read_only_folder_is_read_and_not_written_h22(inputs, tmp_path, in_namespace):
    (tmp_path / "disk").mkdir()
    prepared(inputs, tmp_path / "disk/graph")
    problems, found = in_namespace(READ_ONLY, inputs, tmp_path / "disk", tmp_path / "parts")
    assert problems == []
    assert len(found) == 2
    for code, message in found:
        assert code == 4
        assert "Read-only file system\nGive a folder that may be written." in message
    with gnnx.open(tmp_path / "parts") as parts:
        assert parts.num_nodes == NUM_NODES


# Rows about damage, H21


@pytest.mark.parametrize("name", ["indices", "indptr", "x"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_dataset_is_not_cut_into_parts_h21(inputs, tmp_path, name, damage):
    path = prepared(inputs, tmp_path / "graph")
    (file,) = path.rglob(f"{name}.npy")
    size = file.stat().st_size
    if damage == "cut":
        os.truncate(file, size - 64)
        cause = f"{name}.npy: {size - 4096} bytes expected, {size - 4096 - 64} found"
    else:
        with file.open("r+b") as stream:
            stream.seek(4096 + 1000 + 7)
            byte = stream.read(1)[0]
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte ^ 0x40]))
        cause = f"{name}.npy: page 0, bytes 4096 to {size}: "
    if (name, damage) == ("indices", "flip"):  # met before the checksums: the graph is opened first
        cause = "indices.npy: node "
    with pytest.raises(DataError, match="npy: ") as caught:
        partition(path, tmp_path / "parts", num_parts=3, method="stream")
    assert cause in str(caught.value)
    assert names(tmp_path) == ["graph", "in"]


# H22: two processes


def test_of_two_processes_one_writes_and_a_dead_one_is_no_hindrance_h22(inputs, tmp_path):
    command = [*CLI, "prepare", str(inputs / "e.txt"), str(tmp_path / "out"), "--quiet"]
    command += ["--features", str(inputs / "x.npy"), "--undirected"]
    first = subprocess.Popen(command)
    lock = tmp_path / ".out.lock"
    while not (lock.exists() and lock.read_text()):
        assert first.poll() is None
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(
            ResourceError, match=f"out: locked: process {first.pid} is writing it\nWait for it"
        ):
            prepare(inputs / "e.txt", tmp_path / "out", num_nodes=NUM_NODES)
    finally:
        first.kill()
        first.wait()
    began = time.process_time()
    prepare(inputs / "e.txt", tmp_path / "out", features=inputs / "x.npy", undirected=True)
    assert time.process_time() - began < 5
    assert names(tmp_path) == ["in", "out"]
    prepare(inputs / "e.txt", tmp_path / "one", features=inputs / "x.npy", undirected=True)
    assert fingerprint(tmp_path / "out") == fingerprint(tmp_path / "one")


@pytest.mark.slow
def test_two_processes_at_the_same_moment_h22(inputs, tmp_path):
    command = [*CLI, "prepare", str(inputs / "e.txt"), str(tmp_path / "out"), "--quiet"]
    command += ["--features", str(inputs / "x.npy"), "--undirected", "--overwrite"]
    runs = [subprocess.Popen(command) for _ in range(2)]
    assert sorted(run.wait(100) for run in runs) in ([0, 0], [0, 4])
    prepare(inputs / "e.txt", tmp_path / "one", features=inputs / "x.npy", undirected=True)
    assert fingerprint(tmp_path / "out") == fingerprint(tmp_path / "one")


# H12, H13, H17: sizes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_preparation_of_20_million_edges_within_its_limit_h12(tmp_path):
    pairs = np.random.default_rng(0).integers(0, 1_000_000, (20_000_000, 2), np.int32)
    np.save(tmp_path / "e.npy", pairs)
    del pairs
    command = [*CLI, "prepare", str(tmp_path / "e.npy"), str(tmp_path / "out"), "--json"]
    command += ["--num-nodes", "1000000"]
    first = subprocess.Popen([*command, "--memory", "512MB"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(first.pid, 0)
    first.returncode = os.waitstatus_to_exitcode(status)
    assert first.returncode == 0
    assert usage.ru_maxrss <= 768 << 10
    prepare(tmp_path / "e.npy", tmp_path / "free", num_nodes=1_000_000)
    assert fingerprint(tmp_path / "out") == fingerprint(tmp_path / "free")


def test_a_moved_dataset_is_the_same_h13(inputs, tmp_path):
    path = prepared(inputs, tmp_path / "graph")
    expected = fingerprint(path)
    shutil.copytree(path, tmp_path / "far" / "copy")
    shutil.rmtree(path)
    assert fingerprint(tmp_path / "far" / "copy") == expected
    assert gnnx.store.verify(tmp_path / "far" / "copy") == []


def test_offsets_have_64_bits_h17():
    degrees = np.array([2**30, 2**30, 16, 0])
    assert _kernels.start_rows(degrees) == 2147483664
    assert degrees.tolist() == [0, 1073741824, 2147483648, 2147483664]
