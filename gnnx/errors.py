"""Every exception a user can meet; each carries the exit code of the command line.

The first line of a message is the cause, with the file, column or id at fault and the numbers that
disagree. The second line says what to do.
"""


class GnnxError(Exception):
    """Base of all errors that are the user's to read, never a defect of gnnx.

    Parameters
    ----------
    cause
        One line: what is wrong, where, and the numbers that disagree.
    remedy
        One line: what to do about it.
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}\n{self.remedy}"


class RunError(GnnxError):
    """The run itself failed: a stage died, a wait ran out of time, a loss is not finite."""

    exit_code = 1


class UsageError(GnnxError):
    """An argument or option is wrong."""

    exit_code = 2


class DataError(GnnxError):
    """Input data or a data set on disk is wrong."""

    exit_code = 3


class ResourceError(GnnxError):
    """Memory, disk space or a lock is not to be had."""

    exit_code = 4


class BudgetError(ResourceError):
    """A tier's budget is too small.

    Parameters
    ----------
    cause
        As in `GnnxError`.
    remedy
        As in `GnnxError`.
    tier
        Name of the tier: ``"device"``, ``"host"`` or ``"disk"``.
    shortfall_bytes
        Bytes asked for beyond the budget.
    smallest_bytes
        The smallest budget of that tier with which the request would have been met.
    """

    def __init__(
        self, cause: str, remedy: str, *, tier: str, shortfall_bytes: int, smallest_bytes: int
    ) -> None:
        super().__init__(cause, remedy)
        self.tier = tier
        self.shortfall_bytes = shortfall_bytes
        self.smallest_bytes = smallest_bytes
