"""A dataset on disk: the format, the writer, the read engine, graph and features."""

from gnnx.store.dataset import Dataset, open
from gnnx.store.engine import ReadEngine
from gnnx.store.features import ConstantFeatures, DiskFeatures, FeatureStore, Pending
from gnnx.store.keys import Keys
from gnnx.store.manifest import Manifest
from gnnx.store.scratch import ScratchRows
from gnnx.store.topology import GraphStore
from gnnx.store.verification import Problem, verify
from gnnx.store.writer import ArrayWriter, DatasetWriter, whole_file

__all__ = [
    "ArrayWriter",
    "ConstantFeatures",
    "Dataset",
    "DatasetWriter",
    "DiskFeatures",
    "FeatureStore",
    "GraphStore",
    "Keys",
    "Manifest",
    "Pending",
    "Problem",
    "ReadEngine",
    "ScratchRows",
    "open",
    "verify",
    "whole_file",
]
