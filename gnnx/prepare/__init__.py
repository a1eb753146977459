"""Raw input to a data set on disk, in bounded memory, checked on the way; and made-up graphs."""

from gnnx.prepare.build import prepare
from gnnx.prepare.community import synth
from gnnx.prepare.forecast import Forecast, forecast
from gnnx.prepare.report import Report

__all__ = ["Forecast", "Report", "forecast", "prepare", "synth"]
