"""Memory budgets: how many bytes each tier may hold, and who holds them.

Every buffer of size in gnnx is allocated by a `Ledger`, inside one slab a tier, never beside it.
The budget is thus a fact of the allocator, not a sum of estimates.
"""

from gnnx.memory.budget import Budget, Tier, format_bytes, parse_bytes
from gnnx.memory.ledger import Ledger, Reservation
from gnnx.memory.process import available_bytes, peak_rss_bytes, rss_bytes
from gnnx.memory.slab import ALIGNMENT, PAGE

__all__ = [
    "ALIGNMENT",
    "PAGE",
    "Budget",
    "Ledger",
    "Reservation",
    "Tier",
    "available_bytes",
    "format_bytes",
    "parse_bytes",
    "peak_rss_bytes",
    "rss_bytes",
]
