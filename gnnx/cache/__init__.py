"""Keep the rows that are wanted most; policies are pure functions, the cache moves bytes."""

from gnnx.cache.access import access_bytes, every, expected_access, hottest
from gnnx.cache.features import AccessCounts, FeatureCache, overhead_bytes

__all__ = [
    "AccessCounts",
    "FeatureCache",
    "access_bytes",
    "every",
    "expected_access",
    "hottest",
    "overhead_bytes",
]
