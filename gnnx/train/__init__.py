"""Train a model on a data set within its budget, evaluate it exactly, stop and go on."""

from gnnx.train.base import base_rss_bytes
from gnnx.train.checkpoint import Checkpoint, load_checkpoint
from gnnx.train.logs import JsonLines, TensorBoard
from gnnx.train.metrics import METRICS, UNLABELLED, MetricName, Metrics, evaluate
from gnnx.train.plan import Plan, check_memory
from gnnx.train.reports import EpochReport, MemoryReport, TrainReport
from gnnx.train.trainer import Trainer

__all__ = [
    "METRICS",
    "UNLABELLED",
    "Checkpoint",
    "EpochReport",
    "JsonLines",
    "MemoryReport",
    "MetricName",
    "Metrics",
    "Plan",
    "TensorBoard",
    "TrainReport",
    "Trainer",
    "base_rss_bytes",
    "check_memory",
    "evaluate",
    "load_checkpoint",
]
