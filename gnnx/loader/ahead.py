"""What is made ahead of batches, over epochs that follow each other: their rows, and their draws.

Batches are counted on from epoch to epoch: batch s of epoch e, of n steps, is number e n + s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gnnx.cache import lengths

if TYPE_CHECKING:
    from gnnx.cache import FeatureCache, WindowCounts
    from gnnx.sample import Drawn, Draws


class FileCounts(NamedTuple):
    """Reads of the file of features so far."""

    num_bytes: int
    num_reads: int


class Ahead:
    """Rows and draws on their way to the batches of an epoch, or of several in a row.

    Parameters
    ----------
    features
        Whose source is read.
    num_steps
        n.
    end
        Number of the batch after the last one.

    Attributes
    ----------
    rows : Lookahead
        Brings the rows; set before the first batch, by batch number.
    draws : Draws or None
        Draws for the batches, where they draw together.
    """

    def __init__(self, features: FeatureCache, num_steps: int, end: int) -> None:
        self.features, self.num_steps, self.end = features, num_steps, end
        self.rows: Any
        self.draws: Draws | None = None
        self._begun: dict[int, FileCounts] = {}
        self._ended_bytes = 0  # written by draws that have ended
        self._next, self._pid = -1, os.getpid()

    def follows(self, number: int) -> bool:
        """Whether a batch is the one after those that are done, and this process the same."""
        return self._next == number < self.end and self._pid == os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process has the threads, not one that it was forked from."""
        return self._pid == os.getpid()

    def windows(self, steps: int, first: int) -> list[int]:
        """Batches of each window of at most so many; each epoch is cut on its own."""
        found = list[int]()
        while first < self.end:
            left = self.num_steps - first % self.num_steps
            found += lengths(steps, left)
            first += left
        return found

    def look_at(self, number: int) -> None:
        """Take note that the rows of a batch are looked for; those of windows before are read."""
        epoch, step = divmod(number, self.num_steps)
        if step == 0:
            self._begun[epoch] = self.read()

    def read(self) -> FileCounts:
        """Tell what was read of the features so far."""
        return FileCounts(self.features.source_bytes_read, self.features.source_reads)

    def read_before(self, epoch: int) -> FileCounts:
        """Tell what was read of them before windows of an epoch began: so far, where none has."""
        return self._begun.get(epoch) or self.read()

    def drawn(self, number: int) -> tuple[Drawn | None, ...]:
        """Further arguments of the sampler: what the batch draws, where batches draw together."""
        draws = self.draws
        return () if draws is None else (draws.of(number),)

    def is_ready(self, number: int) -> bool:
        """Whether preparing a batch would not wait for what is made ahead."""
        return self.rows.is_ready(number) and (self.draws is None or self.draws.is_ready(number))

    def done(self, number: int) -> None:
        """Tell that the batches up to a number are complete."""
        self._next = number + 1
        self.rows.done(number)
        if self.draws is not None:
            self.draws.done(number)

    def stop(self) -> None:
        """Let nobody wait any longer for what is made ahead."""
        self.rows.stop()
        if self.draws is not None:
            self.draws.stop()

    def end_draws(self) -> None:
        """Draw no longer ahead; nobody uses what was drawn."""
        if self.draws is not None:
            self.draws.close()
            self._ended_bytes += self.draws.bytes_written
            self.draws = None

    @property
    def drawn_bytes(self) -> int:
        """Bytes written of what was drawn."""
        return self._ended_bytes + (0 if self.draws is None else self.draws.bytes_written)

    def close(self) -> WindowCounts:
        """Give back what was made, of which nobody is going to use any more; what windows did."""
        self.stop()
        counts: WindowCounts = self.rows.close()
        del self.rows  # it knows the loader, and this
        self.end_draws()
        return counts
