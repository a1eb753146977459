"""The mini-batch engine: from an epoch's order to complete batches, prepared while one computes."""

from gnnx.loader.engine import EpochStats, Loader
from gnnx.loader.hetero import HeteroLoader
from gnnx.loader.seeds import Split
from gnnx.loader.trace import Trace

__all__ = ["EpochStats", "HeteroLoader", "Loader", "Split", "Trace"]
