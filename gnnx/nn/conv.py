"""Convolutions: one block's aggregation with its parameters.

Shapes: S sources, D destinations, F width of a row in, G out. Nothing of size E x F exists; a
convolution with one matrix a neighbour aggregates at the narrower of F and G.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from gnnx import ops
from gnnx.errors import UsageError

if TYPE_CHECKING:
    from gnnx.graph import Block


class GCNConv(nn.Module):
    """Graph convolution of Kipf and Welling (2017): Â h Wᵀ + b with Â = D^(-1/2) (A + I) D^(-1/2).

    D counts the in-edges in the whole graph, the loop that A + I adds among them. A node that has
    an edge to itself gets no second one. A row of which a sampler drew k of d edges is scaled by
    d / k, so that its sum is right on average. Where the block has edge weights, A holds them and D
    adds them up; the added loop has weight 1, and a node whose weights sum to 0 or less takes part
    in nothing.

    Parameters
    ----------
    in_features
        F.
    out_features
        G.
    bias
        Whether to add b.
    edge_weight
        Whether blocks are to carry edge weights; see `needs_edge_weight`.
    """

    needs_degrees = True
    """Blocks must carry whole-graph degrees and loops."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, edge_weight: bool = False
    ) -> None:
        super().__init__()
        self.needs_edge_weight = edge_weight
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W as Glorot and Bengio (2010) do, uniformly; b is 0."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Convolve a block.

        Parameters
        ----------
        block
            With `src_degree`, `dst_degree` and `src_loop`; with `src_strength` if it has weights.
        h
            (S, F)

        Returns
        -------
        Tensor
            (D, G)

        Raises
        ------
        UsageError
            The block has no degrees; `h` has not S rows.
        """
        check_rows(block, h)
        if self.out_features < self.in_features:
            out = _normalized_sum(block, nn.functional.linear(h, self.weight))
        else:
            out = nn.functional.linear(_normalized_sum(block, h), self.weight)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        """Widths and bias, as torch's layers show them."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class SAGEConv(nn.Module):
    """GraphSAGE (Hamilton, Ying and Leskovec, 2017): W_self h_d + b + W_neigh aggr_e h_src(e).

    Parameters
    ----------
    in_features
        F.
    out_features
        G.
    aggr
        How neighbours are aggregated; nothing where there are none.
    bias
        Whether to add b.

    Raises
    ------
    UsageError
        `aggr` is unknown.
    """

    needs_degrees = False
    """A sampled mean is an estimate as it stands."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggr: Literal["mean", "max"] = "mean",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if aggr not in {"mean", "max"}:
            raise UsageError(f"SAGEConv: aggr is {aggr!r}", 'Give "mean" or "max".')
        self.in_features, self.out_features, self.aggr = in_features, out_features, aggr
        self.linear_self = nn.Linear(in_features, out_features, bias)
        self.linear_neigh = nn.Linear(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Draw W_self, b and W_neigh as torch's linear layers do."""
        self.linear_self.reset_parameters()
        self.linear_neigh.reset_parameters()

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Convolve a block.

        Parameters
        ----------
        block
            Any; edge weights play no part.
        h
            (S, F)

        Returns
        -------
        Tensor
            (D, G)

        Raises
        ------
        UsageError
            `h` has not S rows.
        """
        check_rows(block, h)
        own, neigh = self.linear_self, self.linear_neigh
        if self.aggr == "mean" and not _narrows(block, self.in_features, self.out_features):
            args = own.weight, neigh.weight, own.bias
            return ops.sage(block.indptr, block.indices, h, *args, transpose=block.transpose)
        out: Tensor = own(h[: block.num_dst])
        if self.aggr == "mean":
            return out + _aggregate(block, neigh(h), "mean")
        neighbours: Tensor = neigh(_aggregate(block, h, self.aggr))
        return out + neighbours

    def extra_repr(self) -> str:
        """Widths and aggregation, as torch's layers show them."""
        return f"{self.in_features}, {self.out_features}, aggr={self.aggr!r}"


class GINConv(nn.Module):
    """Graph isomorphism network (Xu et al., 2019): nn((1 + eps) h_d + sum_e h_src(e)).

    A row of which a sampler drew k of d edges has its sum scaled by d / k, so that it is right on
    average.

    Parameters
    ----------
    mlp
        Network from width F to width G, called with (D, F); the paper's has two layers.
    eps
        At first.
    train_eps
        Whether eps is a parameter.
    """

    needs_degrees = True
    """Blocks must carry whole-graph degrees: a sum grows with the edges drawn."""

    eps: Tensor

    def __init__(self, mlp: nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.mlp, self.initial_eps = mlp, eps
        if train_eps:
            self.eps = nn.Parameter(torch.tensor([float(eps)]))
        else:
            self.register_buffer("eps", torch.tensor([float(eps)]))

    def reset_parameters(self) -> None:
        """Draw the network's parameters anew, each module's as it does; eps as at first."""
        module: Any
        for module in self.mlp.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        self.eps.data.fill_(self.initial_eps)

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Convolve a block.

        Parameters
        ----------
        block
            With `dst_degree`; edge weights play no part.
        h
            (S, F)

        Returns
        -------
        Tensor
            (D, G)

        Raises
        ------
        UsageError
            The block has no degrees; `h` has not S rows.
        """
        check_rows(block, h)
        if block.dst_degree is None:
            raise _no_degrees("GINConv")
        total = _aggregate(block, h, "sum")
        drawn = _drawn(block, block.dst_degree, torch.promote_types(h.dtype, torch.float32))
        own = (1 + self.eps) * h[: block.num_dst]
        out: Tensor = self.mlp((total * drawn[:, None] + own).to(h.dtype))
        return out

    def extra_repr(self) -> str:
        """First eps, and whether it is learned, as torch's layers show them."""
        return f"eps={self.initial_eps}, train_eps={isinstance(self.eps, nn.Parameter)}"


def _aggregate(block: Block, h: Tensor, reduce: ops.Reduce) -> Tensor:
    return ops.spmm(block.indptr, block.indices, h, reduce=reduce, transpose=block.transpose)


def _narrows(block: Block, num_in: int, num_out: int) -> bool:
    """Whether to project first: the edges move less than the sources that are no destinations cost.

    A processor does some 8 operations, CPU or GPU, in the time of a byte: the 4 (F - G) bytes that
    an edge saves are weighed against the 2 F G operations of a row that had not to be projected.
    """
    saved = 32 * block.num_edges * (num_in - num_out)
    return saved > 2 * (block.num_src - block.num_dst) * num_in * num_out


def check_rows(block: Block, h: Tensor) -> None:
    """Refuse an input that has not one row for every source."""
    if len(h) != block.num_src:
        raise UsageError(
            f"h has {len(h)} rows, the block {block.num_src} sources",
            "Give one row for every source of the block, in their order.",
        )


def _normalized_sum(block: Block, h: Tensor) -> Tensor:
    """Compute Â h: scaled before and after the sum, so that no edge carries a coefficient."""
    weight = block.edge_weight
    degree = block.src_degree if weight is None else block.src_strength
    if weight is not None and degree is None:
        raise UsageError(
            "GCNConv: the block has edge weights, but not their sums",
            "Make blocks with Loader(..., edge_weight=True).",
        )
    if degree is None or block.dst_degree is None or block.src_loop is None:
        raise _no_degrees("GCNConv")
    wide = torch.promote_types(h.dtype, torch.float32)
    degree = (degree + ~block.src_loop).to(wide)  # the loop to add counts
    scale = torch.where(degree > 0, degree, torch.inf).rsqrt()
    own = scale[: block.num_dst]
    drawn = _drawn(block, block.dst_degree, wide)
    added = torch.where(block.src_loop[: block.num_dst], 0.0, own * own)
    # factors of float32 would make a narrower h wide: each product is rounded back
    total = ops.spmm(
        block.indptr,
        block.indices,
        (h * scale[:, None]).to(h.dtype),
        weight if weight is None else weight.to(h.dtype),
        transpose=block.transpose,
    )
    out = total * (own * drawn)[:, None] + h[: block.num_dst] * added[:, None]
    return out.to(h.dtype)


def _drawn(block: Block, degree: Tensor, dtype: torch.dtype) -> Tensor:
    """By what a sum over k drawn of d edges falls short, d / k: 1 where the row is whole."""
    return degree.to(dtype) / block.indptr.diff().clamp(min=1)


def _no_degrees(layer: str) -> UsageError:
    return UsageError(
        f"{layer}: the block has no degrees of the whole graph",
        "Make blocks with Loader(..., degrees=True), or with Graph.block().",
    )
