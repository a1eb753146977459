"""Convolutions of PyTorch Geometric as layers of gnnx.

The package is not imported: a module that is called as its convolutions are is taken. Shapes:
S sources, D destinations, E edges, F width in, G width out.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnnx.errors import UsageError

if TYPE_CHECKING:
    from gnnx.graph import Block


class PyGConv(nn.Module):
    """A convolution of torch_geometric as a layer, called as ``layer(block, h)``.

    The convolution is called as ``conv((h, h[:D]), edge_index)``, its bipartite form, with the
    block's edge weights and features where it has arguments for them and the block carries them.
    In a `gnnx.nn.Stack` it runs in every mode: mini-batch training, exact evaluation, inference.
    What it allocates an edge is torch's own and in no budget: most make messages of E x F.

    Parameters
    ----------
    conv
        With a bipartite form, such as ``SAGEConv``, ``GATConv``, ``GINConv``, ``GraphConv``.

    Raises
    ------
    UsageError
        The convolution says by its types that it takes no pair of inputs, as ``GCNConv`` does.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv: Any = conv
        parameters = inspect.signature(conv.forward).parameters
        if not _takes_pairs(conv):
            raise UsageError(
                f"{type(conv).__name__} has no bipartite form: its x is one tensor",
                "Use a layer of gnnx.nn, or give the model edge_index by Loader(edge_index=True).",
            )
        self._extras = [name for name in ("edge_weight", "edge_attr") if name in parameters]
        self._sized = "size" in parameters

    def reset_parameters(self) -> None:
        """Draw the convolution's parameters anew."""
        self.conv.reset_parameters()

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Convolve a block.

        Parameters
        ----------
        block
            Any.
        h
            (S, F)

        Returns
        -------
        Tensor
            (D, G)
        """
        num_dst = block.num_dst
        nodes = torch.arange(num_dst, device=h.device)
        rows = torch.repeat_interleave(nodes, block.indptr.diff(), output_size=block.num_edges)
        more: dict[str, Any] = {name: getattr(block, name) for name in self._extras}
        more = {name: value for name, value in more.items() if value is not None}
        if self._sized:
            more["size"] = (block.num_src, num_dst)
        edge_index = torch.stack([block.indices.long(), rows])
        out: Tensor = self.conv((h, h[:num_dst]), edge_index, **more)
        return out


def _takes_pairs(conv: nn.Module) -> bool:
    """Whether the first argument may be a tuple, as far as its type says."""
    try:
        hints = typing.get_type_hints(conv.forward)
    except (NameError, TypeError):  # types that are not there when the program runs
        return True
    first = next(iter(inspect.signature(conv.forward).parameters), None)
    return hints.get(first or "") is not Tensor
