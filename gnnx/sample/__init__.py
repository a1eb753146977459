"""Samplers: the blocks of a batch as a pure function of graph, seeds and key."""

from gnnx.sample.cluster import Clusters, ClusterSampler
from gnnx.sample.draws import Drawn, Draws
from gnnx.sample.hetero import HeteroSampler, fanouts_by_type
from gnnx.sample.neighbor import NeighborSampler, Sampler
from gnnx.sample.valued import EdgeValues, ValuedSampler

__all__ = [
    "ClusterSampler",
    "Clusters",
    "Drawn",
    "Draws",
    "EdgeValues",
    "HeteroSampler",
    "NeighborSampler",
    "Sampler",
    "ValuedSampler",
    "fanouts_by_type",
]
