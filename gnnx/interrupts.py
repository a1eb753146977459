"""Requests to end (Ctrl-C, SIGTERM): met as KeyboardInterrupt, and never lost."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S = 0.01
_met: list[int] = []


def meet() -> None:
    """Raise KeyboardInterrupt in the main thread on request.

    Python raises it between two steps of whatever runs there. Where that is a finaliser, which
    gnnx's buffers have, Python reports the exception and forgets it: it is raised again then.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _again


def were_met() -> bool:
    """Whether there was a request: an extension that is being imported makes it another error."""
    return bool(_met)


def check() -> None:
    """Raise KeyboardInterrupt again where somebody has swallowed it.

    Modules that try what they can import, and expect any error, do so: the first second of a
    command is spent among them. Called by the main thread while it works, and when it has done so.
    """
    if _met and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> NoReturn:
    _met.append(number)
    raise KeyboardInterrupt


def _again(lost: UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(lost)
