"""Convolutions whose edges carry weights that are learned: a softmax over each row's edges.

Shapes: S sources, D destinations, E edges, H heads, F width of a row in, G width of a head out.
Nothing of size E x G exists; GAT keeps nothing of size E, GATv2 its weights, E x H.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnnx import ops
from gnnx.nn.conv import check_rows

if TYPE_CHECKING:
    from gnnx.graph import Block


class GATConv(nn.Module):
    """Graph attention (Velickovic et al., 2018): y_dh = sum_e w_eh W_h h_src(e), by heads, + b.

    w is the softmax over a row's edges of LeakyReLU(att_dst_h . W_h h_d + att_src_h . W_h h_src).
    Every destination attends to itself once, whatever loops the graph has. Weights are not dropped
    at random, unlike in the paper: `gnnx.nn.ConvLayer` drops elements of the input.

    Parameters
    ----------
    in_features
        F.
    out_features
        G, of one head.
    heads
        H.
    concat
        Whether heads are put side by side, H G wide; else their mean is taken.
    slope
        Of the LeakyReLU below 0.
    bias
        Whether to add b.
    """

    needs_degrees = False
    """A softmax over the edges drawn is an estimate as it stands."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        slope: float = 0.2,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.concat, self.slope = heads, concat, slope
        self.linear = nn.Linear(in_features, heads * out_features, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, out_features))
        self.att_dst = nn.Parameter(torch.empty(heads, out_features))
        self.bias = _bias(self) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W, att_src and att_dst as Glorot and Bengio (2010) do, uniformly; b is 0."""
        for weight in (self.linear.weight, self.att_src, self.att_dst):
            _glorot(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
            (D, H G), or (D, G) of the mean.

        Raises
        ------
        UsageError
            `h` has not S rows.
        """
        check_rows(block, h)
        edges = block.looped
        x = self.linear(h).view(-1, self.heads, self.out_features)
        # att . (W h) is (att W) . h: two columns a head in place of two products as wide as x
        weight = self.linear.weight.view(self.heads, self.out_features, self.in_features)
        att = torch.cat([self.att_src, self.att_dst])
        folded = torch.einsum("hg,hgf->hf", att, torch.cat([weight, weight]))
        terms = nn.functional.linear(h, folded)
        out = ops.attention(
            edges.indptr,
            edges.indices,
            x,
            terms[: block.num_dst, self.heads :],
            terms[:, : self.heads],
            slope=self.slope,
            transpose=edges.transpose,
        )
        return _joined(out, self.concat, self.bias)

    def extra_repr(self) -> str:
        """Widths and heads, as torch's layers show them."""
        return _shown(self)


class GATv2Conv(nn.Module):
    """Dynamic attention (Brody, Alon and Yahav, 2022): y_dh = sum_e w_eh (W_src h_src(e))_h + b.

    w is the softmax over a row's edges of att_h . LeakyReLU(W_dst h_d + W_src h_src)_h; W_src and
    W_dst add a vector each. Every destination attends to itself once, whatever loops the graph has.

    Parameters
    ----------
    in_features
        F.
    out_features
        G, of one head.
    heads
        H.
    concat
        Whether heads are put side by side, H G wide; else their mean is taken.
    slope
        Of the LeakyReLU below 0.
    bias
        Whether W_src and W_dst add vectors, and the sum b.
    share_weights
        Whether W_src and W_dst are one.
    """

    needs_degrees = False
    """A softmax over the edges drawn is an estimate as it stands."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        slope: float = 0.2,
        bias: bool = True,
        share_weights: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.concat, self.slope = heads, concat, slope
        self.linear_src = nn.Linear(in_features, heads * out_features, bias)
        self.linear_dst = (
            self.linear_src if share_weights else nn.Linear(in_features, heads * out_features, bias)
        )
        self.att = nn.Parameter(torch.empty(heads, out_features))
        self.bias = _bias(self) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw matrices and att as Glorot and Bengio (2010), vectors as torch's layers; b is 0."""
        for linear in (self.linear_src, self.linear_dst):
            linear.reset_parameters()
            _glorot(linear.weight)
        _glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
            (D, H G), or (D, G) of the mean.

        Raises
        ------
        UsageError
            `h` has not S rows.
        """
        check_rows(block, h)
        edges = block.looped
        csr, transpose = (edges.indptr, edges.indices), edges.transpose
        x = self.linear_src(h)
        if self.linear_dst is self.linear_src:
            own = x[: block.num_dst]
        else:
            own = self.linear_dst(h[: block.num_dst])
        x, own = (rows.view(-1, self.heads, self.out_features) for rows in (x, own))
        scores = ops.edge_scores(*csr, own, x, self.att, slope=self.slope, transpose=transpose)
        weights = ops.edge_softmax(edges.indptr, scores)
        heads = [
            ops.spmm(*csr, x[:, head], weights[:, head], transpose=transpose)
            for head in range(self.heads)
        ]
        return _joined(torch.stack(heads, 1), self.concat, self.bias)

    def extra_repr(self) -> str:
        """Widths and heads, as torch's layers show them."""
        return _shown(self)


def _bias(conv: GATConv | GATv2Conv) -> nn.Parameter:
    return nn.Parameter(torch.empty(conv.out_features * (conv.heads if conv.concat else 1)))


def _glorot(weight: Tensor) -> None:
    """Uniform within sqrt(6 / (rows + columns)) of 0."""
    bound = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
    nn.init.uniform_(weight, -bound, bound)


def _joined(out: Tensor, concat: bool, bias: Tensor | None) -> Tensor:
    """Heads side by side, or their mean, with the bias."""
    out = out.flatten(1) if concat else out.mean(1)
    return out if bias is None else out + bias


def _shown(conv: GATConv | GATv2Conv) -> str:
    return f"{conv.in_features}, {conv.out_features}, heads={conv.heads}, concat={conv.concat}"
