"""Train graph neural networks on graphs larger than memory, within a stated budget.

Importing this package has no effect: a public name loads its module when it is first used, so
``import gnnx`` brings in neither torch nor numba and starts no thread.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnx import nn, ops
    from gnnx.cache import FeatureCache
    from gnnx.graph import Block, Graph, HeteroBatch, HeteroBlock, MiniBatch
    from gnnx.inference import infer
    from gnnx.interop import PyGConv, from_dgl, from_networkx, from_pyg, from_scipy, to_dgl
    from gnnx.loader import HeteroLoader, Loader
    from gnnx.memory import Budget, Ledger, Tier
    from gnnx.sample import HeteroSampler, NeighborSampler
    from gnnx.store import Dataset, FeatureStore, GraphStore, open
    from gnnx.train import Trainer, evaluate

__version__ = "0.1.0"

__all__ = [
    "Block",
    "Budget",
    "Dataset",
    "FeatureCache",
    "FeatureStore",
    "Graph",
    "GraphStore",
    "HeteroBatch",
    "HeteroBlock",
    "HeteroLoader",
    "HeteroSampler",
    "Ledger",
    "Loader",
    "MiniBatch",
    "NeighborSampler",
    "PyGConv",
    "Tier",
    "Trainer",
    "evaluate",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "infer",
    "nn",
    "open",
    "ops",
    "to_dgl",
]

# Where each public name lives; a name that is a module itself has no entry.
_HOMES = {
    "Block": "gnnx.graph",
    "Budget": "gnnx.memory",
    "Dataset": "gnnx.store",
    "FeatureCache": "gnnx.cache",
    "FeatureStore": "gnnx.store",
    "Graph": "gnnx.graph",
    "GraphStore": "gnnx.store",
    "HeteroBatch": "gnnx.graph",
    "HeteroBlock": "gnnx.graph",
    "HeteroLoader": "gnnx.loader",
    "HeteroSampler": "gnnx.sample",
    "Ledger": "gnnx.memory",
    "Loader": "gnnx.loader",
    "MiniBatch": "gnnx.graph",
    "NeighborSampler": "gnnx.sample",
    "PyGConv": "gnnx.interop",
    "Tier": "gnnx.memory",
    "Trainer": "gnnx.train",
    "evaluate": "gnnx.train",
    "from_dgl": "gnnx.interop",
    "from_networkx": "gnnx.interop",
    "from_pyg": "gnnx.interop",
    "from_scipy": "gnnx.interop",
    "infer": "gnnx.inference",
    "open": "gnnx.store",
    "to_dgl": "gnnx.interop",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gnnx' has no attribute {name!r}")
    home = _HOMES.get(name)
    value = getattr(import_module(home), name) if home else import_module(f"gnnx.{name}")
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
