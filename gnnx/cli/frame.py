"""What every verb shares: where its answer goes, what its errors become, and its common options.

A verb takes its options, calls the library and returns an `Answer`. stdout carries that answer and
nothing else, as a table or, with ``--json``, as one document; logs, progress and errors go to
stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnx.errors import BudgetError, DataError, GnnxError, ResourceError, RunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

SCHEMA = 1  # of every JSON document; raised when a key changes its meaning or goes away

log = logging.getLogger("gnnx")
stdout = Console(highlight=False, soft_wrap=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no logs on stderr.")]
Seed = Annotated[
    int, typer.Option(min=0, max=(1 << 63) - 1, metavar="N", help="Of everything that is drawn.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default="80% of what is free",
        help="Host memory that gnnx's buffers may take: 128MiB, 2GB.",
    ),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default="no limit",
        help="Memory for the batches where they are computed; on a CPU this is RAM as well.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, max=1024, metavar="N", show_default="all processors", help="Computing threads."
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda.")]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a verb found: for programs, for people, and for the shell."""

    document: dict[str, Any]
    """The keys of the JSON document, beside ``schema`` and ``command``."""
    summary: RenderableType
    """The same for people."""
    exit_code: int = 0
    """Other than 0 where the finding is bad although the verb did its work."""


def guarded(verb: Callable[..., Answer]) -> Callable[..., None]:
    """Wrap a verb for Typer: print its answer, or turn its error into two lines and an exit code.

    Parameters
    ----------
    verb
        Has an option `as_json`, and `quiet` where it shows progress.

    Returns
    -------
    callable
        The same signature; returns nothing.

    Raises
    ------
    Exit
        With the exit code of the error, after the message.
    """

    @functools.wraps(verb)
    def command(*args: Any, **options: Any) -> None:
        as_json = options["as_json"]
        try:
            with _logging(quiet=options.get("quiet", True)):
                answer = verb(*args, **options)
        except (BrokenPipeError, typer.Exit):
            raise
        except Exception as error:
            _fail(verb.__name__, error, as_json=as_json)
        if as_json:
            _print_document(verb.__name__, answer.document)
        else:
            # a line of text keeps its length: paths in it are copied
            stdout.print(answer.summary, soft_wrap=isinstance(answer.summary, Text))
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    return command


def facts(title: str, values: Mapping[str, object]) -> Table:
    """Two columns of names and values, the summary of most verbs."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if isinstance(value, bool):
            text = "yes" if value else "no"
        else:
            text = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name, Text(text))
    return table


def set_threads(threads: int | None) -> None:
    """Apply ``--threads``, where it was given, to gnnx's pool and to torch."""
    if threads is not None:
        from gnnx.threads import set_num_threads

        set_num_threads(threads)


def check_device(name: str) -> None:
    """Refuse a device that is not here, before anything is read.

    Parameters
    ----------
    name
        As the user wrote it.

    Raises
    ------
    UsageError
        torch knows no such device, or this machine has none.
    """
    import torch

    try:
        kind = torch.empty(0, device=name).device.type
    except (RuntimeError, AssertionError):
        kind = None
    if kind not in {"cpu", "cuda"}:
        raise UsageError(
            f"--device {name!r} is not to be had here",
            "Give cpu, or see what gnnx doctor lists under devices.",
        )


def parse_list(text: str, option: str, kind: Callable[[str], Any] = int) -> list[Any]:
    """Values of an option written with commas, such as ``15,10,5``.

    Parameters
    ----------
    text
        As the user wrote it.
    option
        Name of the option, for the error.
    kind
        Makes a value of each piece, or raises ValueError.

    Returns
    -------
    list
        At least one value.

    Raises
    ------
    UsageError
        A piece is not such a value.
    """
    try:
        return [kind(piece) for piece in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a list of numbers",
            f"Write numbers with commas between them, such as {option} 15,10,5.",
        ) from None


@contextlib.contextmanager
def _logging(*, quiet: bool) -> Iterator[None]:
    """Show gnnx's log on stderr while a verb runs; the library itself adds no handler."""
    if quiet:
        yield
        return
    handler, level = _ConsoleHandler(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Log lines on the console that draws the progress bar, so that neither tears the other."""

    def emit(self, record: logging.LogRecord) -> None:
        stderr.print(Text(record.getMessage()), soft_wrap=True)


def _print_document(command: str, document: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": SCHEMA, "command": command, **document}, indent=2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail(command: str, error: Exception, *, as_json: bool) -> NoReturn:
    """Two lines on stderr, with ``--json`` the same as the document on stdout, and the exit."""
    if os.environ.get("GNNX_DEBUG") == "1":
        traceback.print_exception(error)
    known = _explained(error)
    stderr.print(Text(f"error: {known.cause}\n{known.remedy}"), soft_wrap=True)
    if as_json:
        report: dict[str, Any] = {
            "kind": type(known).__name__,
            "exit_code": known.exit_code,
            "cause": known.cause,
            "remedy": known.remedy,
        }
        if isinstance(known, BudgetError):
            report["tier"] = known.tier
            report["shortfall_bytes"] = known.shortfall_bytes
            report["smallest_bytes"] = known.smallest_bytes
        _print_document(command, {"error": report})
    raise typer.Exit(known.exit_code)


def _explained(error: Exception) -> GnnxError:
    """Give the error itself where it is gnnx's own, otherwise what it means to the user."""
    if isinstance(error, GnnxError):
        return error
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        what = f": {_first_line(error)}" if str(error) else ""
        return ResourceError(
            f"the machine's memory ran out{what}",
            "Lower --memory or the batch size, or end other programs.",
        )
    if isinstance(error, OSError):
        return _explained_os(error)
    return RunError(
        f"unexpected {type(error).__name__}: {_first_line(error)}",
        "This is a defect of gnnx: GNNX_DEBUG=1 shows the traceback, please report it.",
    )


def _explained_os(error: OSError) -> GnnxError:
    if isinstance(error, TimeoutError):  # one of Python's own, which says nothing of a file
        return RunError(
            f"something has not ended in time: {_first_line(error)}",
            "Check that the disk answers; GNNX_DEBUG=1 shows what waited.",
        )
    where = f"{error.filename}: " if error.filename is not None else ""
    cause = f"{where}{error.strerror or error}"
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return DataError(cause, "Check the path.")
    return ResourceError(cause, "Check free space, permissions and limits there.")


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch's allocator has failed; on a CPU it has no exception of its own for that."""
    texts = ("can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0]
