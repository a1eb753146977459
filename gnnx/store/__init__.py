"""A dataset on disk: the format, the writer, the read engine, graph and features."""

from gnnx.store.dataset import Dataset, open
from gnnx.store.disk import Disk, calibrate, known, streamed_bytes_per_s
from gnnx.store.engine import GAP_BYTES, WAIT_S, Job, ReadEngine
from gnnx.store.features import ConstantFeatures, DiskFeatures, FeatureStore, Pending
from gnnx.store.keys import Keys
from gnnx.store.manifest import MISSING_LABEL, Manifest
from gnnx.store.rehearsal import smallest_named
from gnnx.store.scaled import fetch_values, value_bytes
from gnnx.store.scratch import ScratchFile, ScratchRows
from gnnx.store.topology import PAGE_BYTES, GraphStore
from gnnx.store.trial import Trial, try_reads
from gnnx.store.verification import Problem, verify
from gnnx.store.writer import ArrayWriter, DatasetWriter, enough_named, sync_folder, whole_file

__all__ = [
    "GAP_BYTES",
    "MISSING_LABEL",
    "PAGE_BYTES",
    "WAIT_S",
    "ArrayWriter",
    "ConstantFeatures",
    "Dataset",
    "DatasetWriter",
    "Disk",
    "DiskFeatures",
    "FeatureStore",
    "GraphStore",
    "Job",
    "Keys",
    "Manifest",
    "Pending",
    "Problem",
    "ReadEngine",
    "ScratchFile",
    "ScratchRows",
    "Trial",
    "calibrate",
    "enough_named",
    "fetch_values",
    "known",
    "open",
    "smallest_named",
    "streamed_bytes_per_s",
    "sync_folder",
    "try_reads",
    "value_bytes",
    "verify",
    "whole_file",
]
