"""Models that show their layers, one for each block, and are their composition.

Shapes: S sources and D destinations of a block, F width of a row. An engine may run the layers
one by one, over the whole graph or over parts of it; it finds the same numbers.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from gnnx import ops
from gnnx.errors import UsageError
from gnnx.nn.conv import GCNConv, SAGEConv

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gnnx.graph import Block


class Dropout(nn.Module):
    """Dropout keyed by (seed, epoch, step, layer, global node id, column); nothing in evaluation.

    A node has the same mask in every block of a step's layer, on every rank and in every part,
    and again when a run is resumed. Two of them on one block would draw the same mask.

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
            raise UsageError(f"Dropout: p is {p}", "Give a probability from 0 to 1.")
        self.p = p

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Drop elements of the sources' rows.

        Parameters
        ----------
        block
            Names the rows by its `src_id` and the draws by its `key`.
        h
            (S, F)

        Returns
        -------
        Tensor
            (S, F)
        """
        return ops.dropout(h, block.src_id, self.p, block.key) if self.training else h

    def extra_repr(self) -> str:
        """Probability, as torch's layers show it."""
        return f"p={self.p}"


class ConvLayer(nn.Module):
    """Dropout, a convolution and an activation, as one layer of a model.

    Parameters
    ----------
    conv
        Called as ``conv(block, h)``.
    dropout
        Probability of an element of the input to be zeroed in training.
    activation
        Called with the convolution's output; None for none.
    """

    def __init__(
        self, conv: nn.Module, dropout: float = 0.0, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.dropout, self.activation = Dropout(dropout), activation
        self.conv: Any = conv

    def reset_parameters(self) -> None:
        """Draw the convolution's parameters anew."""
        self.conv.reset_parameters()

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """Apply the three in turn.

        Parameters
        ----------
        block
            As the convolution wants it.
        h
            (S, F)

        Returns
        -------
        Tensor
            (D, G)
        """
        out: Tensor = self.conv(block, self.dropout(block, h))
        return out if self.activation is None else self.activation(out)


class Stack(nn.Module):
    """A model that is the composition of its layers.

    Parameters
    ----------
    layers
        Modules called as ``layer(block, h)``, in order.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    @property
    def needs_degrees(self) -> bool:
        """Whether blocks must carry whole-graph degrees, for one of the layers."""
        return needs_degrees(self.layers)

    def reset_parameters(self) -> None:
        """Draw the parameters of every layer anew, in order."""
        layer: Any
        for layer in self.layers:
            layer.reset_parameters()

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Apply every layer to its block.

        Parameters
        ----------
        blocks
            One for each layer, outermost first; one's destinations are the next one's sources.
        x
            (S, F), features of the first block's sources.

        Returns
        -------
        Tensor
            (D, G), of the last block's destinations.

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
        return x


class GCN(Stack):
    """Layers of `GCNConv`, dropout before each, ReLU between (Kipf and Welling, 2017).

    Parameters
    ----------
    in_features
        Width of the input.
    hidden_features
        Width of what passes between layers.
    out_features
        Width of the output.
    num_layers
        At least 1.
    dropout
        Probability of an element to be zeroed in training, the input's included.
    edge_weight
        Whether to use the weights of the edges.

    Attributes
    ----------
    config : dict
        What `build_model` makes an equal one of.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        dropout: float = 0.5,
        edge_weight: bool = False,
    ) -> None:
        widths = _widths(in_features, hidden_features, out_features, num_layers)
        convs = [GCNConv(*pair, edge_weight=edge_weight) for pair in itertools.pairwise(widths)]
        super().__init__(_with_relu_between(convs, dropout))
        self.config = {
            "model": "gcn",
            "in_features": in_features,
            "hidden_features": hidden_features,
            "out_features": out_features,
            "num_layers": num_layers,
            "dropout": dropout,
            "edge_weight": edge_weight,
        }


class SAGE(Stack):
    """Layers of `SAGEConv`, dropout before each, ReLU between (Hamilton et al., 2017).

    Parameters
    ----------
    in_features
        Width of the input.
    hidden_features
        Width of what passes between layers.
    out_features
        Width of the output.
    num_layers
        At least 1.
    aggr
        As in `SAGEConv`.
    dropout
        Probability of an element to be zeroed in training, the input's included.

    Attributes
    ----------
    config : dict
        What `build_model` makes an equal one of.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        aggr: Literal["mean", "max"] = "mean",
        dropout: float = 0.5,
    ) -> None:
        widths = _widths(in_features, hidden_features, out_features, num_layers)
        convs = [SAGEConv(*pair, aggr=aggr) for pair in itertools.pairwise(widths)]
        super().__init__(_with_relu_between(convs, dropout))
        self.config = {
            "model": "sage",
            "in_features": in_features,
            "hidden_features": hidden_features,
            "out_features": out_features,
            "num_layers": num_layers,
            "aggr": aggr,
            "dropout": dropout,
        }


def needs_edge_weight(module: nn.Module) -> bool:
    """Whether blocks must carry edge weights: some part's attribute `needs_edge_weight` says."""
    return any(getattr(part, "needs_edge_weight", False) for part in module.modules())


def needs_degrees(module: nn.Module) -> bool:
    """Whether blocks must carry whole-graph degrees: some part's attribute `needs_degrees` says."""
    return any(getattr(part, "needs_degrees", False) for part in module.modules())


MODELS: Mapping[str, type[GCN | SAGE]] = MappingProxyType({"gcn": GCN, "sage": SAGE})
"""Models by the name that a configuration gives them."""


def build_model(config: Mapping[str, Any]) -> Stack:
    """Make the model that a configuration describes, with new parameters.

    Parameters
    ----------
    config
        As a model's `config`: ``"model"`` and the arguments of its constructor.

    Returns
    -------
    Stack
        One of `MODELS`.

    Raises
    ------
    UsageError
        The name or an argument is unknown.
    """
    arguments = dict(config)
    name = arguments.pop("model", None)
    if name not in MODELS:
        raise UsageError(f"model {name!r} is unknown", f"Give one of {', '.join(MODELS)}.")
    try:
        return MODELS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"model {name}: {error}", "Give the arguments of its class.") from error


def _widths(
    in_features: int, hidden_features: int, out_features: int, num_layers: int
) -> list[int]:
    """Widths before, between and after the layers."""
    if num_layers < 1:
        raise UsageError(f"a model of {num_layers} layers", "Give at least one layer.")
    return [in_features, *[hidden_features] * (num_layers - 1), out_features]


def _with_relu_between(convs: Sequence[nn.Module], dropout: float) -> list[ConvLayer]:
    *inner, last = convs
    # in place: no convolution needs its output for its gradient, and ReLU's comes from its own
    return [
        *(ConvLayer(conv, dropout, nn.ReLU(inplace=True)) for conv in inner),
        ConvLayer(last, dropout),
    ]
