"""FlexCache: which steps of a request are computed, and what stands for the velocities of the others. Pure, no torch.

The velocities that are kept belong to the state of a request, in `models`.
"""

from epe.cache.profile import FILE, MagTable, Profile, find_profile, published_profile, read_profile
from epe.cache.refreshing import refreshed
from epe.cache.rules import (
    FEW_STEPS,
    NAMES,
    NOTHING_KNOWN,
    CacheRules,
    Unsupported,
    name_of,
    resolve,
    supported,
)
from epe.cache.schedule import reused_kinds
from epe.cache.sizes import RowBytes, Sizes, record_bytes, sizes_of
from epe.cache.weights import last_uses, num_kept, num_records, records_at, weights

__all__ = [
    "FEW_STEPS",
    "FILE",
    "NAMES",
    "NOTHING_KNOWN",
    "CacheRules",
    "MagTable",
    "Profile",
    "RowBytes",
    "Sizes",
    "Unsupported",
    "find_profile",
    "last_uses",
    "name_of",
    "num_kept",
    "num_records",
    "published_profile",
    "read_profile",
    "record_bytes",
    "records_at",
    "refreshed",
    "resolve",
    "reused_kinds",
    "sizes_of",
    "supported",
    "weights",
]
