"""Other packages' graphs and layers for gnnx, and gnnx's blocks in their form."""

from gnnx.interop.dgl import from_dgl, to_dgl
from gnnx.interop.foreign import from_networkx, from_pyg, from_scipy
from gnnx.interop.pyg import PyGConv
from gnnx.interop.tables import InMemoryGraph

__all__ = [
    "InMemoryGraph",
    "PyGConv",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "to_dgl",
]
