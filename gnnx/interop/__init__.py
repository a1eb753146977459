"""Graphs of other packages as tables in memory, which `gnnx.prepare` writes."""

from gnnx.interop.foreign import from_networkx, from_pyg, from_scipy
from gnnx.interop.tables import InMemoryGraph

__all__ = ["InMemoryGraph", "from_networkx", "from_pyg", "from_scipy"]
