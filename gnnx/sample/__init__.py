"""Samplers: the blocks of a batch as a pure function of graph, seeds and key."""

from gnnx.sample.neighbor import NeighborSampler, Sampler
from gnnx.sample.valued import EdgeValues, ValuedSampler

__all__ = ["EdgeValues", "NeighborSampler", "Sampler", "ValuedSampler"]
