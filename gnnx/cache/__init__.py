"""Keep what is wanted most and read the rest at the right time.

Policies and plans are pure functions of ids, counts and sizes: `access`, `plan`, `strategy`,
`draws`. The rest moves bytes: `features` keeps rows, `staging` and `packs` bring those of a window
of batches, `lookahead` makes windows ahead of the batches, `arrange` shares out the memory, and
`bound` tells how few rows an epoch could have read.
"""

from gnnx.cache.access import (
    access_bytes,
    every,
    expected_access,
    expected_pages,
    hottest,
    typed_access,
)
from gnnx.cache.arrange import Arrangement, Decision, Demands, arrange, decide
from gnnx.cache.bound import BeladyBound, bound_bytes
from gnnx.cache.draws import DrawNeeds, DrawPlan, choose_draws
from gnnx.cache.features import AccessCounts, FeatureCache, overhead_bytes
from gnnx.cache.forecast import Forecast, forecast
from gnnx.cache.lookahead import Lookahead, WindowCounts
from gnnx.cache.packs import PackedWindow
from gnnx.cache.plan import HostNeeds, HostPlan, plan, split
from gnnx.cache.rows import RowSet
from gnnx.cache.staging import StagedWindow
from gnnx.cache.strategy import Demand, Strategy, choose, held_bytes, lengths, read_cost
from gnnx.cache.typed import (
    HeteroAhead,
    HeteroDecision,
    HeteroDemands,
    HeteroFeatures,
    arrange_typed,
    decide_typed,
)

__all__ = [
    "AccessCounts",
    "Arrangement",
    "BeladyBound",
    "Decision",
    "Demand",
    "Demands",
    "DrawNeeds",
    "DrawPlan",
    "FeatureCache",
    "Forecast",
    "HeteroAhead",
    "HeteroDecision",
    "HeteroDemands",
    "HeteroFeatures",
    "HostNeeds",
    "HostPlan",
    "Lookahead",
    "PackedWindow",
    "RowSet",
    "StagedWindow",
    "Strategy",
    "WindowCounts",
    "access_bytes",
    "arrange",
    "arrange_typed",
    "bound_bytes",
    "choose",
    "choose_draws",
    "decide",
    "decide_typed",
    "every",
    "expected_access",
    "expected_pages",
    "forecast",
    "held_bytes",
    "hottest",
    "lengths",
    "overhead_bytes",
    "plan",
    "read_cost",
    "split",
    "typed_access",
]
