"""``gnnx plan``: what a training would hold and read, and how long an epoch would take."""

import functools
import inspect
from typing import Any

from gnnx.cli.frame import Answer
from gnnx.cli.train import train


def plan(**options: Any) -> Answer:
    """Show what ``gnnx train`` with these options would hold and read; train nothing."""
    return train(**{**options, "dry_run": True})


# the options of train, whatever they are, but for the one that makes it this
_parameters = inspect.signature(train).parameters
functools.update_wrapper(plan, train, assigned=("__annotations__",))
plan.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [option for name, option in _parameters.items() if name != "dry_run"]
)
