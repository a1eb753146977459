"""The process of the ``gnnx`` command, which is ``python -m gnnx`` as well."""

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from gnnx import interrupts
from gnnx.errors import GnnxError, ResourceError, UsageError


def main() -> None:
    """Run the command line; requests to end are met before anything else is imported."""
    try:
        interrupts.meet()
        # Threads of OpenMP that wait for each other in a loop take the cores from those that read
        # and draw (docs/outofcore.md). OpenMP looks at it once, when torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        _open_streams()
        _check_folder()
        from gnnx.cli import app

        app()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:  # Typer itself meets interrupts while a verb runs
        if end.code == interrupts.INTERRUPTED:
            _end_interrupted()
        raise
    except OSError as error:  # of the answer: a verb explains its own
        _drop_stdout()
        _fail(ResourceError(f"stdout: {error.strerror or error}", "Write it elsewhere."))


def _end_interrupted() -> NoReturn:
    """Exit at once: all has been given back on the way here.

    Python's own end would wait for threads, and kills the process by SIGINT where the interrupt
    came in an `exec`, which dataclasses are made by, though it was met since.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(interrupts.INTERRUPTED)


def _fail(error: GnnxError) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)


def _check_folder() -> None:
    """Torch's MKL ends the process, with a message of its own, where the current folder is gone."""
    try:
        Path.cwd()
    except OSError as error:
        _fail(UsageError(f"current folder: {error.strerror}", "Change to one that is there."))


def _open_streams() -> None:
    """Let any text be written to stdout and stderr, whatever they are."""
    # where a stream is closed, the next file to be opened would be what others print to
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
        stream.reconfigure(errors="backslashreplace")  # file names may hold what it cannot encode


def _drop_stdout() -> None:
    """Let what stdout still holds go nowhere, or Python fails again when it exits."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.close(descriptor)


if __name__ == "__main__":
    main()
