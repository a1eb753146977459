"""Layers and models for graphs with several node and edge types.

A layer is called as ``layer(block, h)`` with a `HeteroBlock` and rows by node type, and gives rows
of the destinations by node type. Shapes, each of a node type t: S_t rows in, D_t destinations, F_t
width in; G width out, the same for all types.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnnx import ops
from gnnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gnnx.graph import Block, EdgeType, HeteroBlock


class HeteroDropout(nn.Module):
    """`gnnx.nn.Dropout` for rows by node type; equal ids of two types have masks of their own.

    Parameters
    ----------
    p
        Probability of an element to be zeroed, in [0, 1].

    Raises
    ------
    UsageError
        `p` is outside [0, 1].
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise UsageError(f"HeteroDropout: p is {p}", "Give a probability from 0 to 1.")
        self.p = p

    def forward(self, block: HeteroBlock, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Drop elements of the rows of each type.

        Parameters
        ----------
        block
            Names the rows by its `src_id` and the draws by its `node_key`.
        h
            (S_t, F_t) by node type.

        Returns
        -------
        dict of str to Tensor
            (S_t, F_t).
        """
        if not self.training or not self.p:
            return h
        return {
            name: ops.dropout(rows, block.src_id[name], self.p, block.node_key(name))
            for name, rows in h.items()
        }

    def extra_repr(self) -> str:
        """Probability, as torch's layers show it."""
        return f"p={self.p}"


class TypeLinear(nn.Module):
    """A linear map of its own for each node type: W_t h + b_t.

    Parameters
    ----------
    in_features
        F_t by node type.
    out_features
        G.
    """

    def __init__(self, in_features: Mapping[str, int], out_features: int) -> None:
        super().__init__()
        self.node_types = sorted(in_features)
        # a list, since types may have names that a module cannot have
        self.linears = nn.ModuleList(
            nn.Linear(in_features[name], out_features) for name in self.node_types
        )

    def reset_parameters(self) -> None:
        """Draw all as torch's linear layers do."""
        _reset(self.linears)

    def forward(self, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map the rows of each type.

        Parameters
        ----------
        h
            (R_t, F_t) by node type; types that the map does not know are left out.

        Returns
        -------
        dict of str to Tensor
            (R_t, G).
        """
        pairs = zip(self.node_types, self.linears, strict=True)
        return {name: linear(h[name]) for name, linear in pairs}


class RGCNConv(nn.Module):
    """Relational convolution (Schlichtkrull et al., 2018): W_0 h_d + b + Σ_r W_r mean_r(d).

    mean_r(d) is the mean of the sources of the edges of type r into d, 0 where there are none: the
    paper's c = |N_r(d)|. W_0 is shared by all node types. With bases, W_r = Σ_k a_rk V_k.

    Parameters
    ----------
    in_features
        F, the same for all node types.
    out_features
        G.
    edge_types
        Which take part.
    out_types
        Node types to compute.
    num_bases
        Number of V_k; None gives each edge type a matrix of its own.

    Raises
    ------
    UsageError
        There is less than one basis.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        edge_types: Iterable[EdgeType],
        out_types: Iterable[str],
        num_bases: int | None = None,
    ) -> None:
        super().__init__()
        if num_bases is not None and num_bases < 1:
            raise UsageError(f"RGCNConv: {num_bases} bases", "Give at least 1, or None.")
        self.in_features, self.out_features = in_features, out_features
        self.edge_types, self.out_types = sorted(edge_types), sorted(out_types)
        count = len(self.edge_types)
        self.linear_self = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(torch.empty(num_bases or count, out_features, in_features))
        self.coefficient = (
            None if num_bases is None else nn.Parameter(torch.empty(count, num_bases))
        )
        self._draw()

    def reset_parameters(self) -> None:
        """Draw W_0 and b as torch's linear layers do; W_r or V_k and a as Glorot and Bengio do."""
        self.linear_self.reset_parameters()
        self._draw()

    def _draw(self) -> None:
        bound = math.sqrt(6 / (self.in_features + self.out_features))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.coefficient is not None:
            nn.init.xavier_uniform_(self.coefficient)

    def forward(self, block: HeteroBlock, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convolve a block.

        Parameters
        ----------
        block
            With the edge types of the layer.
        h
            (S_t, F) by node type.

        Returns
        -------
        dict of str to Tensor
            (D_t, G) of the types to compute.

        Raises
        ------
        UsageError
            The block lacks a type, or `h` has another number of rows.
        """
        _check(block, h, self.edge_types)
        out = {t: self.linear_self(h[t][: block.num_dst[t]]) for t in self.out_types}
        weights: Tensor = self.weight
        if self.coefficient is not None:
            weights = torch.tensordot(self.coefficient, weights, 1)
        for weight, edge_type in zip(weights, self.edge_types, strict=True):
            src, _, dst = edge_type
            out[dst] = out[dst] + _mean_linear(block.blocks[edge_type], h[src], weight)
        return out

    def extra_repr(self) -> str:
        """Sizes, as torch's layers show them."""
        bases = "" if self.coefficient is None else f", num_bases={len(self.weight)}"
        sizes = f"{self.in_features}, {self.out_features}, edge_types={len(self.edge_types)}"
        return sizes + bases


class HeteroSAGEConv(nn.Module):
    """GraphSAGE a relation, summed: W_t h_d + b_t + Σ_r W_r mean_r(d), d of type t.

    A matrix of its own for d in each relation, as a `SAGEConv` a relation would have it, adds up
    to W_t. Widths may differ from type to type.

    Parameters
    ----------
    in_features
        F_t by node type.
    out_features
        G.
    edge_types
        Which take part.
    out_types
        Node types to compute.
    """

    def __init__(
        self,
        in_features: Mapping[str, int],
        out_features: int,
        edge_types: Iterable[EdgeType],
        out_types: Iterable[str],
    ) -> None:
        super().__init__()
        self.edge_types, self.out_types = sorted(edge_types), sorted(out_types)
        own = {t: in_features[t] for t in self.out_types}
        self.linear_self = TypeLinear(own, out_features)
        self.linear_neigh = nn.ModuleList(
            nn.Linear(in_features[src], out_features, bias=False) for src, _, _ in self.edge_types
        )

    def reset_parameters(self) -> None:
        """Draw all as torch's linear layers do."""
        self.linear_self.reset_parameters()
        _reset(self.linear_neigh)

    def forward(self, block: HeteroBlock, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convolve a block.

        Parameters
        ----------
        block
            With the edge types of the layer.
        h
            (S_t, F_t) by node type.

        Returns
        -------
        dict of str to Tensor
            (D_t, G) of the types to compute.

        Raises
        ------
        UsageError
            The block lacks a type, or `h` has another number of rows.
        """
        _check(block, h, self.edge_types)
        out: dict[str, Tensor]
        out = self.linear_self({t: h[t][: block.num_dst[t]] for t in self.out_types})
        linear: Any
        for linear, edge_type in zip(self.linear_neigh, self.edge_types, strict=True):
            src, _, dst = edge_type
            out[dst] = out[dst] + _mean_linear(block.blocks[edge_type], h[src], linear.weight)
        return out


class HeteroConvLayer(nn.Module):
    """A map of the input, dropout, a convolution and an activation, as one layer of a model.

    Parameters
    ----------
    conv
        Called as ``conv(block, h)``.
    dropout
        Probability of an element of the convolution's input to be zeroed in training.
    activation
        Called with the convolution's output, type by type; None for none.
    encoder
        Called with `h` before all; None for none.
    """

    def __init__(
        self,
        conv: nn.Module,
        dropout: float = 0.0,
        activation: nn.Module | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.dropout, self.activation, self.encoder = HeteroDropout(dropout), activation, encoder
        self.conv: Any = conv

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        _reset([part for part in (self.encoder, self.conv) if part is not None])

    def forward(self, block: HeteroBlock, h: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply all in turn.

        Parameters
        ----------
        block
            As the convolution wants it.
        h
            (S_t, F_t) by node type.

        Returns
        -------
        dict of str to Tensor
            (D_t, G).
        """
        h = h if self.encoder is None else self.encoder(h)
        out: dict[str, Tensor] = self.conv(block, self.dropout(block, h))
        if self.activation is None:
            return out
        return {name: self.activation(rows) for name, rows in out.items()}


class HeteroStack(nn.Module):
    """A model for typed graphs that is the composition of its layers.

    Parameters
    ----------
    layers
        Modules called as ``layer(block, h)``, in order.
    target
        Node type whose rows the model gives.
    """

    def __init__(self, layers: Iterable[nn.Module], target: str) -> None:
        super().__init__()
        self.layers, self.target = nn.ModuleList(layers), target

    def reset_parameters(self) -> None:
        """Draw the parameters of every layer anew, in order."""
        _reset(self.layers)

    def forward(self, blocks: Sequence[HeteroBlock], x: dict[str, Tensor]) -> Tensor:
        """Apply every layer to its block.

        Parameters
        ----------
        blocks
            One for each layer, outermost first; one's destinations are the next one's rows.
        x
            (S_t, F_t) by node type, features of the first block's rows.

        Returns
        -------
        Tensor
            (D, G), of the last block's destinations of the target type.

        Raises
        ------
        UsageError
            There are more or fewer blocks than layers.
        """
        if len(blocks) != len(self.layers):
            raise UsageError(
                f"{len(blocks)} blocks for a model of {len(self.layers)} layers",
                "Give as many fanouts as the model has layers.",
            )
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, x)
        return x[self.target]


class RGCN(HeteroStack):
    """A linear map a node type, then layers of `RGCNConv`, dropout before each, ReLU between.

    Layers compute the node types, and use the edge types, that the target depends on.

    Parameters
    ----------
    in_features
        Width of the input by node type, such as `Dataset.widths`.
    hidden_features
        Width of what passes between layers.
    out_features
        Width of the output.
    num_layers
        At least 1.
    edge_types
        All of the graph.
    target
        Node type whose rows the model gives.
    num_bases
        As in `RGCNConv`.
    dropout
        Probability of an element to be zeroed in training.

    Attributes
    ----------
    config : dict
        What `build_model` makes an equal one of.
    """

    def __init__(
        self,
        in_features: Mapping[str, int],
        hidden_features: int,
        out_features: int,
        num_layers: int,
        edge_types: Iterable[EdgeType],
        target: str,
        num_bases: int | None = None,
        dropout: float = 0.5,
    ) -> None:
        edge_types = [(src, relation, dst) for src, relation, dst in edge_types]
        needs, inputs = _needs(edge_types, target, num_layers)
        layers = []
        for depth, (relations, types) in enumerate(needs, start=1):
            last = depth == num_layers
            width = out_features if last else hidden_features
            conv = RGCNConv(hidden_features, width, relations, types, num_bases)
            layers.append(
                HeteroConvLayer(
                    conv,
                    dropout,
                    activation=None if last else nn.ReLU(),
                    encoder=_encoder(in_features, inputs, hidden_features) if depth == 1 else None,
                )
            )
        super().__init__(layers, target)
        self.config = {
            "model": "rgcn",
            "in_features": dict(in_features),
            "hidden_features": hidden_features,
            "out_features": out_features,
            "num_layers": num_layers,
            "edge_types": edge_types,
            "target": target,
            "num_bases": num_bases,
            "dropout": dropout,
        }


class HeteroSAGE(HeteroStack):
    """Layers of `HeteroSAGEConv`, dropout before each, ReLU between.

    Layers compute the node types, and use the edge types, that the target depends on.

    Parameters
    ----------
    in_features
        Width of the input by node type, such as `Dataset.widths`.
    hidden_features
        Width of what passes between layers.
    out_features
        Width of the output.
    num_layers
        At least 1.
    edge_types
        All of the graph.
    target
        Node type whose rows the model gives.
    dropout
        Probability of an element to be zeroed in training, the input's included.

    Attributes
    ----------
    config : dict
        What `build_model` makes an equal one of.
    """

    def __init__(
        self,
        in_features: Mapping[str, int],
        hidden_features: int,
        out_features: int,
        num_layers: int,
        edge_types: Iterable[EdgeType],
        target: str,
        dropout: float = 0.5,
    ) -> None:
        edge_types = [(src, relation, dst) for src, relation, dst in edge_types]
        needs, inputs = _needs(edge_types, target, num_layers)
        layers = []
        widths: Mapping[str, int] = in_features
        for depth, (relations, types) in enumerate(needs, start=1):
            last = depth == num_layers
            width = out_features if last else hidden_features
            conv = HeteroSAGEConv(widths, width, relations, types)
            layers.append(HeteroConvLayer(conv, dropout, None if last else nn.ReLU()))
            widths = dict.fromkeys(inputs, hidden_features)
        super().__init__(layers, target)
        self.config = {
            "model": "hetero-sage",
            "in_features": dict(in_features),
            "hidden_features": hidden_features,
            "out_features": out_features,
            "num_layers": num_layers,
            "edge_types": edge_types,
            "target": target,
            "dropout": dropout,
        }


def _needs(
    edge_types: Sequence[EdgeType], target: str, num_layers: int
) -> tuple[list[tuple[list[EdgeType], list[str]]], list[str]]:
    """Edge types and node types of each layer, the first one's first; and the inputs' types."""
    if num_layers < 1:
        raise UsageError(f"a model of {num_layers} layers", "Give at least one layer.")
    types, layers = {target}, []
    for _ in range(num_layers):
        relations = [edge_type for edge_type in edge_types if edge_type[2] in types]
        layers.append((relations, sorted(types)))
        types |= {src for src, _, _ in relations}
    return layers[::-1], sorted(types)


def _encoder(
    in_features: Mapping[str, int], node_types: Sequence[str], out_features: int
) -> TypeLinear:
    return TypeLinear({name: in_features[name] for name in node_types}, out_features)


def _mean_linear(block: Block, h: Tensor, weight: Tensor) -> Tensor:
    """Mean over each destination's edges, then W; the other way round where that is narrower."""
    if weight.shape[0] < weight.shape[1]:
        return _mean(block, nn.functional.linear(h, weight))
    return nn.functional.linear(_mean(block, h), weight)


def _mean(block: Block, h: Tensor) -> Tensor:
    return ops.spmm(block.indptr, block.indices, h, reduce="mean", transpose=block.transpose)


def _reset(modules: Iterable[nn.Module]) -> None:
    module: Any
    for module in modules:
        module.reset_parameters()


def _check(block: HeteroBlock, h: dict[str, Tensor], edge_types: Sequence[EdgeType]) -> None:
    """Refuse what would otherwise fail inside an operator, or not at all."""
    for edge_type in edge_types:
        if edge_type not in block.blocks:
            raise UsageError(
                f"the block has no edges of type {edge_type}",
                f"It has {list(block.blocks)}.",
            )
    for name, rows in h.items():
        if len(rows) != len(block.src_id[name]):
            raise UsageError(
                f"h has {len(rows)} rows of {name!r}, the block {len(block.src_id[name])}",
                "Give one row for every node of the block, in their order.",
            )
