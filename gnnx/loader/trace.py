"""Who did what when: spans of the pipeline in a file that Chrome and Perfetto show."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gnnx.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Trace:
    """Spans, written as they end: a trace of any length takes no memory.

    The file is a JSON array of events (Chrome's Trace Event Format); after a kill it lacks its last
    bracket, which viewers forgive. Safe to call from several threads; a context manager.

    Parameters
    ----------
    path
        Written anew.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path, self._lock = Path(path), threading.Lock()
        self._begin, self._known = time.perf_counter(), set[int]()
        try:
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ResourceError(
                f"{self.path}: {error.strerror or error}", "Name another file for the trace."
            ) from None
        self._file.write("[")
        self._event("process_name", "M", args={"name": "gnnx"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def add(self, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        """Write a span of the calling thread.

        Parameters
        ----------
        name
            Of the stage.
        begin_s
            Of `time.perf_counter`.
        end_s
            Of `time.perf_counter`.
        **args
            Shown with it: epoch, step.
        """
        with self._lock:
            if self._file.closed:
                return  # a thread that came late
            self._event(
                name,
                "X",
                ts=round(1e6 * (begin_s - self._begin), 1),
                dur=round(1e6 * (end_s - begin_s), 1),
                args=args,
            )

    @contextlib.contextmanager
    def span(self, name: str, **args: Any) -> Iterator[None]:
        """Write how long the context lasts."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, begin, time.perf_counter(), **args)

    def close(self) -> None:
        """End the array; a second call does nothing."""
        with self._lock:
            if not self._file.closed:
                self._file.write("\n]\n")
                self._file.close()

    def _event(self, name: str, kind: str, **fields: Any) -> None:
        """Write an event; the lock is held."""
        thread = threading.get_native_id()
        event = {"name": name, "ph": kind, "pid": os.getpid(), "tid": thread, **fields}
        if kind == "X" and thread not in self._known:
            self._known.add(thread)
            self._event("thread_name", "M", args={"name": threading.current_thread().name})
        first = name == "process_name"
        self._file.write(f"{'' if first else ','}\n{json.dumps(event, separators=(',', ':'))}")
