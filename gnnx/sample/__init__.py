"""Samplers: the blocks of a batch as a pure function of graph, seeds and key."""

from gnnx.sample.cluster import Clusters, ClusterSampler
from gnnx.sample.neighbor import NeighborSampler, Sampler

__all__ = ["ClusterSampler", "Clusters", "NeighborSampler", "Sampler"]
