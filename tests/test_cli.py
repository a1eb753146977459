"""The command line's frame: light help, one document, two error lines, exit codes, progress."""

import errno
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import typer.main
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app, frame, progress
from gnnx.errors import BudgetError, DataError, ResourceError, RunError, UsageError

VERBS = [
    "synth",
    "prepare",
    "partition",
    "info",
    "verify",
    "plan",
    "train",
    "infer",
    "export",
    "doctor",
]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
runner = CliRunner()


def toy(error: BaseException | None = None, exit_code: int = 0) -> typer.Typer:
    """A command line whose one verb, `act`, answers, or fails with the error."""

    def act(as_json: frame.Json = False, quiet: frame.Quiet = False) -> frame.Answer:
        logging.getLogger("gnnx").info("working on %d %% of [it]", 50)
        if error is not None:
            raise error
        return frame.Answer({"value": 3}, frame.facts("found", {"value": 3}), exit_code)

    made = typer.Typer(pretty_exceptions_enable=False)
    made.command()(frame.guarded(act))
    made.callback()(lambda: None)  # so that the verb is named, as in gnnx's own
    return made


def test_help_is_quick_and_light():
    """In seconds of the processor, since other work may share it."""
    probe = (
        "import sys, time; begin = time.process_time()\n"
        "from gnnx.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numba', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "print(time.process_time() - begin, *heavy, file=sys.stderr)"
    )
    best = min(_probe(probe) for _ in range(3))
    assert best <= 0.5


def _probe(code: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    seconds, *heavy = done.stderr.split()
    assert heavy == []
    return float(seconds)


def test_version():
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"gnnx {gnnx.__version__}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_has_an_example(verb):
    result = runner.invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: gnnx {verb}" in result.stdout
    assert "--json" in result.stdout


def test_verbs_are_frozen():
    assert [command.callback.__name__ for command in app.registered_commands] == VERBS


def test_options_are_frozen():
    """An option is added here on purpose, or not at all."""
    found = {
        name: " ".join(
            option
            for parameter in command.params
            for option in parameter.opts
            if option[:2] == "--"
        )
        for name, command in typer.main.get_command(app).commands.items()
    }
    training = (
        "--model --bases --edge-weight --aggr --heads --fanouts --sampler --clusters-per-batch"
        " --layers --hidden --dropout --batch-size --epochs --lr --weight-decay --optimizer"
        " --schedule --class-weights --bf16 --eval-every --metric --patience"
        " --checkpoint --checkpoint-every --resume --memory --device-memory --threads --device"
        " --seed --log --log-dir --trace"
    )
    assert found == {
        "bench": "",  # a group: its verb io has --seconds --memory --json
        "synth": "--nodes --edges --features --classes --split --seed --memory --threads"
        " --overwrite --quiet --json",
        "prepare": "--features --labels --train --val --test --num-nodes"
        " --edge-weight --edge-attr --edge-time --undirected"
        " --self-loops --duplicates --split --dtype --nonfinite --unlabeled --delimiter --layout"
        " --root --remap --pickles --bad-lines --strict --dry-run"
        " --seed --memory --overwrite --quiet --json",
        "partition": "--parts --method --order --balance --imbalance --time-limit --seed --memory"
        " --threads --overwrite --quiet --json",
        "info": "--json",
        "verify": "--threads --quiet --json",
        "plan": f"{training} --quiet --json",
        "train": f"{training} --dry-run --quiet --json",
        "infer": "--checkpoint --out --memory --device-memory --threads --device --quiet --json",
        "export": "--what --type --rows --memory --json",
        "doctor": "--json",
    }


def test_answer_for_people_and_for_programs():
    result = runner.invoke(toy(), ["act"])
    assert result.exit_code == 0
    assert "value" in result.stdout
    assert result.stderr == "working on 50 % of [it]\n"
    result = runner.invoke(toy(), ["act", "--json"])
    assert json.loads(result.stdout) == {"schema": 1, "command": "act", "value": 3}


def test_quiet_silences_stderr():
    assert runner.invoke(toy(), ["act", "--quiet"]).stderr == ""


def test_bad_finding_keeps_its_document():
    result = runner.invoke(toy(exit_code=3), ["act", "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["value"] == 3


ERRORS = {
    "run": (RunError("loss is nan", "Lower --lr."), 1, "loss is nan", "Lower --lr."),
    "usage": (UsageError("no", "Do."), 2, "no", "Do."),
    "data": (DataError("x.npy: [bad] id 5", "Mend."), 3, "x.npy: [bad] id 5", "Mend."),
    "resource": (ResourceError("locked", "Wait."), 4, "locked", "Wait."),
    "memory": (MemoryError(), 4, "the machine's memory ran out", "Lower --memory"),
    "memory of torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        4,
        "the machine's memory ran out: DefaultCPUAllocator: can't allocate memory",
        "Lower --memory",
    ),
    "space": (
        OSError(errno.ENOSPC, "No space left on device", "big.npy"),
        4,
        "big.npy: No space left on device",
        "Check free space",
    ),
    "permission": (
        PermissionError(errno.EACCES, "Permission denied", "out"),
        4,
        "out: Permission denied",
        "Check free space, permissions",
    ),
    "absent": (
        FileNotFoundError(errno.ENOENT, "No such file or directory", "x.csv"),
        3,
        "x.csv: No such file or directory",
        "Check the path.",
    ),
    "defect": (
        KeyError("indptr\nmore"),
        1,
        r"unexpected KeyError: 'indptr\nmore'",
        "This is a defect of gnnx: GNNX_DEBUG=1 shows the traceback",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_is_two_lines_and_an_exit_code(name):
    error, code, cause, remedy = ERRORS[name]
    result = runner.invoke(toy(error), ["act", "--json"])
    assert result.exit_code == code
    _, *lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0] == f"error: {cause}"
    assert lines[1].startswith(remedy)
    document = json.loads(result.stdout)
    assert document["error"]["exit_code"] == code
    assert document["error"]["cause"] == cause
    assert document["error"]["remedy"] == lines[1]


def test_long_error_line_is_not_wrapped():
    cause = "x" * 200
    result = runner.invoke(toy(DataError(cause, "Mend.")), ["act", "--quiet"])
    assert result.stderr == f"error: {cause}\nMend.\n"
    assert result.stdout == ""


def test_budget_error_names_the_numbers():
    error = BudgetError("c", "r", tier="host", shortfall_bytes=5, smallest_bytes=105)
    report = json.loads(runner.invoke(toy(error), ["act", "--json"]).stdout)["error"]
    assert (report["tier"], report["shortfall_bytes"], report["smallest_bytes"]) == ("host", 5, 105)


def test_traceback_on_request(monkeypatch):
    monkeypatch.setenv("GNNX_DEBUG", "1")
    result = runner.invoke(toy(KeyError("indptr")), ["act"])
    assert "Traceback" in result.stderr
    assert result.exit_code == 1


def test_interrupt_is_130():
    result = runner.invoke(toy(KeyboardInterrupt()), ["act", "--json"])
    assert (result.exit_code, result.stdout) == (130, "")


def test_interrupt_is_not_lost_in_a_finaliser():
    """Python forgets what is raised in `__del__`, where a training spends part of its time."""
    code = (
        "import os, signal, time\n"
        "from gnnx import interrupts\n"
        "class Buffer:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.1)\n"
        "interrupts.meet()\n"
        "try:\n"
        "    Buffer(); time.sleep(30)\n"
        "except KeyboardInterrupt:\n"
        "    print('met')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert (done.stdout, done.stderr) == ("met\n", "")


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_interrupt_while_it_starts_is_130(delay_s):
    """Typer and Rich take a third of a second to import, and torch more than one."""
    started = (
        "from gnnx import __main__, interrupts\n"
        "meet = interrupts.meet\n"
        "interrupts.meet = lambda: (meet(), print(flush=True))\n"
        "__main__.main()\n"
    )
    words = [sys.executable, "-c", started, "doctor"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_an_interrupt_waits_for_an_import(tmp_path):
    """Modules that try an import swallow what is raised in it."""
    (tmp_path / "trying.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)\n"
        "except BaseException:\n"
        "    print('swallowed')\n"
        "print('imported')\n"
    )
    code = (
        "import time\n"
        "from gnnx import __main__, cli\n"
        "def app():\n"
        "    import trying\n"
        "    time.sleep(9)\n"
        "cli.app = app\n"
        "__main__.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=8,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", "")


def test_interrupt_in_an_exec_is_130():
    """Python kills itself by SIGINT at its end where an `exec` was interrupted, met or not."""
    code = (
        "import os, signal\n"
        "from gnnx import __main__, cli\n"
        "source = 'import os, signal; os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(9)]'\n"
        "cli.app = lambda: exec(source)\n"
        "__main__.main()\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


_PRINTS = """
import sys, typer
from rich.text import Text
from gnnx import __main__, cli
from gnnx.cli.frame import Answer, Json, guarded

def toy(as_json: Json = False) -> Answer:
    return Answer({"text": "\\u00fc" + 70000 * "x"}, Text("\\u00fc\\udcff" + 70000 * "x"))

cli.app = typer.Typer(pretty_exceptions_enable=False)
cli.app.command()(guarded(toy))
__main__.main()
"""


@pytest.mark.parametrize("option", ["", "--json"])
@pytest.mark.parametrize(
    ("to", "code", "message"),
    [
        ("> /dev/full", 4, "error: stdout: No space left on device\nWrite it elsewhere.\n"),
        (">&-", 0, ""),  # nobody wants the answer
        ("<&- >&- 2>&-", 0, ""),
        ("> /dev/null", 0, ""),
    ],
)
def test_whatever_stdout_is(option, to, code, message):
    words = ["sh", "-c", f"{sys.executable} -c '{_PRINTS}' {option} {to}"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", message)


def test_a_current_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"rmdir {gone}; {sys.executable} -m gnnx doctor"
    done = subprocess.run(
        ["sh", "-c", words],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(Path(gnnx.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    message = "error: current folder: No such file or directory\nChange to one that is there.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_unknown_option_is_usage():
    result = runner.invoke(app, ["info", "graph", "--colour"])
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_logger_is_left_as_it_was():
    before = list(frame.log.handlers), frame.log.level
    runner.invoke(toy(RunError("c", "r")), ["act"])
    assert (list(frame.log.handlers), frame.log.level) == before
    assert frame.log.handlers == []


def test_parse_list():
    assert frame.parse_list("15,-1, 5", "--fanouts") == [15, -1, 5]
    assert frame.parse_list("0.6,0.2", "--split", float) == [0.6, 0.2]
    with pytest.raises(UsageError, match="--fanouts '15,,5' is not a list of numbers"):
        frame.parse_list("15,,5", "--fanouts")


def test_reader_that_leaves_is_no_error():
    """As in `gnnx info --json | head -1`."""
    code = (
        "import os, sys; from gnnx.cli import app\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "app(['--version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == ""


def test_plain_lines_are_few_and_without_control_characters(capsys):
    now = [0.0]
    lines = progress.Lines(clock=lambda: now[0])
    for done in range(1, 1201):  # 60 s of a stage that reports 20 times a second
        now[0] = done / 20
        lines("epoch [1]", done * 10, 12_000)
    printed = capsys.readouterr().err
    assert CONTROL.search(printed) is None
    assert len(printed.splitlines()) == 12
    assert printed.splitlines()[0] == "epoch [1]: 10 of 12,000"
    assert printed.splitlines()[6] == "epoch [1]: 6,010 of 12,000, 200/s, 30 s left"


def test_rate_counts_from_the_stage_s_begin(capsys):
    """A resumed stage has much done before its first second."""
    now = [0.0]
    lines = progress.Lines(clock=lambda: now[0])
    lines("read", 900, 1000)
    now[0] = 10.0
    lines("read", 950, 1000)
    assert capsys.readouterr().err.splitlines()[-1] == "read: 950 of 1,000, 5/s, 10 s left"


def test_terminal_gets_a_bar_and_a_pipe_does_not():
    code = (
        "import time\n"
        "from gnnx.cli import progress\n"
        "with progress.shown(quiet=False) as report:\n"
        "    for done in range(1, 11):\n"
        "        report('epoch 1', done, 10); time.sleep(0.02)\n"
    )
    reader, writer = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=writer,
        timeout=60,
        check=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(writer)
    drawn = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert "epoch 1" in drawn
    assert "100%" in drawn
    assert "/s" in drawn
    piped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert CONTROL.search(piped.stderr) is None
    assert done.returncode == piped.returncode == 0


def test_quiet_progress_shows_nothing(capsys):
    with progress.shown(quiet=True) as report:
        report("work", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_compact_numbers():
    shown = [progress._compact(number) for number in (0.25, 12, 999.6, 1234567, 5e15)]
    assert shown == ["0.25", "12", "1k", "1.23M", "5e+03T"]
