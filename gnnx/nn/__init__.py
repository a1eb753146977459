"""Layers called as ``layer(block, h)``, and the models made of them.

A layer maps the features of a block's sources to those of its destinations, and knows nothing of
how blocks come to be: the same model runs on sampled blocks, on the whole graph and on its parts.
Parameters are drawn from torch's default generator.
"""

from gnnx.nn.conv import GCNConv, SAGEConv
from gnnx.nn.models import (
    GCN,
    MODELS,
    SAGE,
    ConvLayer,
    Dropout,
    Stack,
    build_model,
    needs_degrees,
    needs_edge_weight,
)

__all__ = [
    "GCN",
    "MODELS",
    "SAGE",
    "ConvLayer",
    "Dropout",
    "GCNConv",
    "SAGEConv",
    "Stack",
    "build_model",
    "needs_degrees",
    "needs_edge_weight",
]
