"""Parts and orders of the nodes: made, measured on the edges, and written as ranges of ids."""

from gnnx.partition.build import PartitionReport, fill_empty_parts, partition, random_parts
from gnnx.partition.measure import Quality, measure
from gnnx.partition.parts import Partition
from gnnx.partition.problem import Problem
from gnnx.partition.stream import StreamSearch

__all__ = [
    "Partition",
    "PartitionReport",
    "Problem",
    "Quality",
    "StreamSearch",
    "fill_empty_parts",
    "measure",
    "partition",
    "random_parts",
]
