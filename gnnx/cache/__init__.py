"""Keep what is wanted most; policies and plans are pure functions, the cache moves bytes."""

from gnnx.cache.access import access_bytes, every, expected_access, hottest
from gnnx.cache.features import AccessCounts, FeatureCache, overhead_bytes
from gnnx.cache.plan import HostNeeds, HostPlan, plan

__all__ = [
    "AccessCounts",
    "FeatureCache",
    "HostNeeds",
    "HostPlan",
    "access_bytes",
    "every",
    "expected_access",
    "hottest",
    "overhead_bytes",
    "plan",
]
