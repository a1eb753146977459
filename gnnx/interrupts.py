"""Requests to end (Ctrl-C, SIGTERM): met as KeyboardInterrupt, and never lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells have it

_AGAIN_S = 0.01
_LONGEST_S = 1.0  # torch takes three seconds to import on a busy machine
_IMPORT = "<frozen importlib._bootstrap>"


def meet() -> None:
    """Raise KeyboardInterrupt in the main thread on request.

    Python raises it between two steps of whatever runs there. Two places are bad for it, and are
    left first. In a finaliser, which gnnx's buffers have, Python reports the exception and forgets
    it. In an import, modules that try what they can import swallow it, extensions make it another
    error, and torch's abort the process where it comes from a call of Python out of their C++. An
    import that goes on for longer than a user waits for Ctrl-C ends with the process, at once:
    what a killed process leaves is found by the next one anyway.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _again


_deferred: list[float] = []  # the times of it, of a monotonic clock in seconds


def _interrupt(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            _deferred.append(time.monotonic())
            if _deferred[-1] - _deferred[0] > _LONGEST_S:
                os._exit(INTERRUPTED)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _again(lost: UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(lost)
