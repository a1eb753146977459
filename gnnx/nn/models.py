"""Models that show their layers, one for each block, and are their composition.

Shapes: S sources and D destinations of a block, F width of a row. An engine may run the layers
one by one, over the whole graph or over parts of it; it finds the same numbers.
"""

from __future__ import annotations

import abc
import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from gnnx import ops
from gnnx.errors import UsageError
from gnnx.nn.attention import GATConv, GATv2Conv
from gnnx.nn.conv import GCNConv, GINConv, SAGEConv
from gnnx.nn.hetero import RGCN, HeteroSAGE, HeteroStack

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


class _Layered(Stack, abc.ABC):
    """Layers of one convolution, dropout before each, an activation between.

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
    **options
        Of `_conv`.

    Attributes
    ----------
    config : dict
        What `build_model` makes an equal one of.
    """

    name: ClassVar[str]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        dropout: float,
        **options: Any,
    ) -> None:
        if num_layers < 1:
            raise UsageError(f"a model of {num_layers} layers", "Give at least one layer.")
        widths = [in_features, *[hidden_features] * (num_layers - 1), out_features]
        *inner, last = itertools.pairwise(widths)
        layers = [
            ConvLayer(self._conv(*pair, False, **options), dropout, self._activation())
            for pair in inner
        ]
        super().__init__([*layers, ConvLayer(self._conv(*last, True, **options), dropout)])
        self.config = {
            "model": self.name,
            "in_features": in_features,
            "hidden_features": hidden_features,
            "out_features": out_features,
            "num_layers": num_layers,
            **options,
            "dropout": dropout,
        }

    @staticmethod
    @abc.abstractmethod
    def _conv(in_features: int, out_features: int, last: bool) -> nn.Module:
        """Make a layer's convolution; `last` is that of the output."""

    @staticmethod
    def _activation() -> nn.Module:
        # in place: no convolution before it needs its own output for its gradient
        return nn.ReLU(inplace=True)


class GCN(_Layered):
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
    """

    name = "gcn"

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        dropout: float = 0.5,
        edge_weight: bool = False,
    ) -> None:
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers,
            dropout,
            edge_weight=edge_weight,
        )

    @staticmethod
    def _conv(
        in_features: int, out_features: int, last: bool, edge_weight: bool = False
    ) -> nn.Module:
        return GCNConv(in_features, out_features, edge_weight=edge_weight)


class SAGE(_Layered):
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
    """

    name = "sage"

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        aggr: Literal["mean", "max"] = "mean",
        dropout: float = 0.5,
    ) -> None:
        super().__init__(in_features, hidden_features, out_features, num_layers, dropout, aggr=aggr)

    @staticmethod
    def _conv(
        in_features: int, out_features: int, last: bool, aggr: Literal["mean", "max"] = "mean"
    ) -> nn.Module:
        return SAGEConv(in_features, out_features, aggr)


class GIN(_Layered):
    """Layers of `GINConv`, dropout before each, ReLU between (Xu et al., 2019).

    A layer's network has two matrices with ReLU between, as wide as its output.

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
    train_eps
        As in `GINConv`.
    dropout
        Probability of an element to be zeroed in training, the input's included.
    """

    name = "gin"

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        train_eps: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(
            in_features, hidden_features, out_features, num_layers, dropout, train_eps=train_eps
        )

    @staticmethod
    def _conv(
        in_features: int, out_features: int, last: bool, train_eps: bool = False
    ) -> nn.Module:
        first, second = nn.Linear(in_features, out_features), nn.Linear(out_features, out_features)
        return GINConv(nn.Sequential(first, nn.ReLU(), second), train_eps=train_eps)


class GAT(_Layered):
    """Layers of `GATConv`, dropout before each, ELU between (Velickovic et al., 2018).

    The heads of a hidden layer are put side by side and share its width; of the last layer, where
    each is as wide as the output, the mean is taken.

    Parameters
    ----------
    in_features
        Width of the input.
    hidden_features
        Width of what passes between layers, a multiple of the heads.
    out_features
        Width of the output.
    num_layers
        At least 1.
    heads
        Of every layer.
    dropout
        Probability of an element to be zeroed in training, the input's included.

    Raises
    ------
    UsageError
        The heads do not divide the hidden width.
    """

    name = "gat"
    conv: ClassVar[type[GATConv | GATv2Conv]] = GATConv

    @staticmethod
    def _activation() -> nn.Module:
        return nn.ELU()

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        num_layers: int,
        heads: int = 4,
        dropout: float = 0.5,
    ) -> None:
        if heads < 1 or hidden_features % heads:
            raise UsageError(
                f"{heads} heads for a hidden width of {hidden_features}",
                "Give a hidden width that is a multiple of the heads.",
            )
        super().__init__(
            in_features, hidden_features, out_features, num_layers, dropout, heads=heads
        )

    @classmethod
    def _conv(cls, in_features: int, out_features: int, last: bool, heads: int = 4) -> nn.Module:
        width = out_features if last else out_features // heads
        return cls.conv(in_features, width, heads, concat=not last)


class GATv2(GAT):
    """As `GAT`, with layers of `GATv2Conv` (Brody et al., 2022)."""

    name = "gatv2"
    conv = GATv2Conv


def needs_edge_weight(module: nn.Module) -> bool:
    """Whether blocks must carry edge weights: some part's attribute `needs_edge_weight` says."""
    return any(getattr(part, "needs_edge_weight", False) for part in module.modules())


def needs_degrees(module: nn.Module) -> bool:
    """Whether blocks must carry whole-graph degrees: some part's attribute `needs_degrees` says."""
    return any(getattr(part, "needs_degrees", False) for part in module.modules())


MODELS: Mapping[str, type[Any]] = MappingProxyType(
    {model.name: model for model in (GCN, SAGE, GIN, GAT, GATv2)}
    | {"rgcn": RGCN, "hetero-sage": HeteroSAGE}
)
"""Models by the name that a configuration gives them."""


def build_model(config: Mapping[str, Any]) -> Stack | HeteroStack:
    """Make the model that a configuration describes, with new parameters.

    Parameters
    ----------
    config
        As a model's `config`: ``"model"`` and the arguments of its constructor.

    Returns
    -------
    Stack or HeteroStack
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
        model: Stack = MODELS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"model {name}: {error}", "Give the arguments of its class.") from error
    return model
