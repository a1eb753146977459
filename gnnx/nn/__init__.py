"""Layers called as ``layer(block, h)``, and the models made of them.

A layer maps the features of a block's sources to those of its destinations, and knows nothing of
how blocks come to be: the same model runs on sampled blocks, on the whole graph and on its parts.
Parameters are drawn from torch's default generator.
"""

from gnnx.nn.attention import GATConv, GATv2Conv
from gnnx.nn.conv import GCNConv, GINConv, SAGEConv
from gnnx.nn.hetero import (
    RGCN,
    HeteroConvLayer,
    HeteroDropout,
    HeteroSAGE,
    HeteroSAGEConv,
    HeteroStack,
    RGCNConv,
    TypeLinear,
)
from gnnx.nn.models import (
    GAT,
    GCN,
    GIN,
    MODELS,
    SAGE,
    ConvLayer,
    Dropout,
    GATv2,
    Stack,
    build_model,
    needs_degrees,
    needs_edge_weight,
)

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "MODELS",
    "RGCN",
    "SAGE",
    "ConvLayer",
    "Dropout",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "HeteroConvLayer",
    "HeteroDropout",
    "HeteroSAGE",
    "HeteroSAGEConv",
    "HeteroStack",
    "RGCNConv",
    "SAGEConv",
    "Stack",
    "TypeLinear",
    "build_model",
    "needs_degrees",
    "needs_edge_weight",
]
