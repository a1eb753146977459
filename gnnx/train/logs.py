"""Where the reports of epochs go as they come: lines of JSON, TensorBoard."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnx.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from gnnx.train.reports import EpochReport


class JsonLines:
    """Writes one JSON object an epoch, a line each, flushed: to be followed while training runs.

    Parameters
    ----------
    path
        The file.
    append
        Go on behind what is there, as after a resume.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """

    def __init__(self, path: Path | str, *, append: bool = False) -> None:
        self.path = Path(path)
        if not append:
            self._write("", "w")

    def __call__(self, report: EpochReport) -> None:
        """Write a line."""
        self._write(json.dumps(dataclasses.asdict(report)) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ResourceError(
                f"{self.path}: {error.strerror or error}", "Name another file for the log."
            ) from None


class TensorBoard:
    """Writes the numbers of an epoch's report as scalars that TensorBoard draws.

    Parameters
    ----------
    folder
        Of the run.

    Raises
    ------
    UsageError
        TensorBoard is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError(
                "TensorBoard is not installed",
                "Install the package tensorboard, or use --log FILE.jsonl.",
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, report: EpochReport) -> None:
        """Write the numbers of an epoch."""
        for name, value in dataclasses.asdict(report).items():
            if value is not None and name != "epoch":
                self._writer.add_scalar(name, value, report.epoch)
        self._writer.flush()
