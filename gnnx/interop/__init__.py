"""Other packages' graphs, models and blocks, and gnnx's in their form."""

from gnnx.interop.foreign import from_networkx, from_pyg, from_scipy
from gnnx.interop.pyg import PyGConv
from gnnx.interop.tables import InMemoryGraph

__all__ = ["InMemoryGraph", "PyGConv", "from_networkx", "from_pyg", "from_scipy"]
