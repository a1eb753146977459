"""What goes wrong under way in a training: told with file and byte, in time, and nothing stays."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest
import torch

import gnnx
from gnnx.errors import DataError, ResourceError, RunError
from gnnx.memory import rss_bytes
from gnnx.nn import SAGE
from gnnx.prepare import synth
from gnnx.train import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "synth"
    sizes = {"num_nodes": 4000, "num_edges": 40_000, "num_features": 192, "num_classes": 4}
    synth(path, **sizes, seed=1, split="0.2,0.02,0.02")
    return path


def make(dataset, **options):
    torch.manual_seed(3)
    model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
    return Trainer(model, dataset, **{"fanouts": [4, 4], "batch_size": 50} | options)


def after(steps, act):
    """Progress that acts once after so many steps."""

    def progress(stage, done, _total):
        if stage.startswith("epoch") and done == steps:
            act()

    return progress


CASES = {
    "features": ("nodes/node/x", "1MiB"),
    "topology": ("edges/node-edge-node/indices", "300KiB"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_cut_short_while_training_is_named(folder, tmp_path, case):
    name, memory = CASES[case]
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / f"copy/{name}.npy"
    with gnnx.open(tmp_path / "copy", memory=memory) as dataset:
        trainer = make(dataset)
        cut = after(4, lambda: os.truncate(file, 4096 + 512))
        with pytest.raises(DataError) as caught:
            trainer.fit(3, progress=cut)
    assert caught.value.cause.startswith(f"{file}: ")
    assert " bytes expected at byte " in caught.value.cause
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_the_disk_while_training_is_named(folder, case):
    """Reading what a process has not mapped is an EIO, as a bad sector is."""
    name, memory = CASES[case]
    broken = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        with gnnx.open(folder, memory=memory) as dataset:
            trainer = make(dataset)
            file = dataset.array(name).file
            with pytest.raises(RunError) as caught:
                trainer.fit(3, progress=after(4, lambda: os.dup2(broken, file.open())))
    finally:
        os.close(broken)
    assert caught.value.cause.startswith(f"{folder / name}.npy: Input/output error: ")
    assert " bytes expected at byte " in caught.value.cause


@pytest.mark.parametrize("memory", ["300KiB", "1MiB", "2MiB"])  # topology on disk, rows, packs
def test_a_read_that_never_returns_ends_the_training_and_the_process(folder, memory):
    script = f"""
        import sys, threading, time, gnnx, torch
        from gnnx.errors import RunError
        from gnnx.nn import SAGE
        from gnnx.store import engine
        from gnnx.train import Trainer

        stuck, read = [], engine.read_chunks

        def hang(*arguments):
            if armed:
                stuck.append(time.monotonic())
                threading.Event().wait()
            read(*arguments)

        armed, engine.read_chunks = False, hang

        def progress(stage, done, total):
            global armed
            armed = stage.startswith("epoch") and done >= 4

        with gnnx.open({str(folder)!r}, memory={memory!r}, io_timeout_s=2) as dataset:
            model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
            trainer = Trainer(model, dataset, fanouts=[4, 4], batch_size=50)
            try:
                trainer.fit(3, progress=progress)
            except RunError as error:
                cause = error.cause
        print(cause)
        print(time.monotonic() - stuck[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cause, seconds = done.stdout.splitlines()
    assert cause.startswith((str(folder), f"{tempfile.gettempdir()}/gnnx-"))  # or a pack
    assert "nothing was read for 2 s" in cause
    assert float(seconds) < 2 + 5


@pytest.mark.slow
def test_twenty_epochs_leave_nothing_behind(folder, tmp_path):
    """Neither memory nor descriptors nor threads, at a budget that makes packs."""
    seen = []

    def look(_report):
        threads = len(os.listdir("/proc/self/task"))
        seen.append((rss_bytes(), len(os.listdir("/proc/self/fd")), threads))

    with gnnx.open(folder, memory="2MiB") as dataset:
        trainer = make(dataset, checkpoint=tmp_path, checkpoint_every=5)
        report = trainer.fit(25, observe=[look])
        assert report.epochs[-1].windows > 0
    growth, files, threads = np.array(seen[-1]) - np.array(seen[4])
    assert growth < 20e6
    assert files <= 0
    assert threads <= 0


def test_a_model_beyond_the_free_memory_is_refused(folder, monkeypatch):
    """Of Adam's four tensors a weight the first is there."""
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
        needed = 3 * 4 * sum(weights.numel() for weights in model.parameters())
        monkeypatch.setattr("gnnx.train.plan.available_bytes", lambda: needed - 1)
        with pytest.raises(ResourceError) as caught:
            Trainer(model, dataset, fanouts=[3, 3])
        assert f" take {needed} bytes (" in caught.value.cause
        assert f" more, {needed - 1} (" in caught.value.cause
        monkeypatch.setattr("gnnx.train.plan.available_bytes", lambda: needed)
        Trainer(model, dataset, fanouts=[3, 3])
