"""The hub: the journals of many clients in one place, one SEJ directory for each.

No network is in here: :class:`Store` takes messages in, :class:`Merge` reads all directories back as one stream.
``hub.wire`` puts gRPC before the store; importing ``hub`` loads none of it. Names are handed on at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub.errors import (
        AccessError,
        ConflictError,
        DiskLowError,
        GapError,
        HubError,
        QuotaError,
        SourceError,
        UnavailableError,
    )
    from hub.merge import Merge
    from hub.naming import Source
    from hub.overview import JournalStats, stats
    from hub.retention import clean
    from hub.store import Store

_HOME = {
    "hub.errors": (
        "AccessError", "ConflictError", "DiskLowError", "GapError", "HubError", "QuotaError", "SourceError",
        "UnavailableError",
    ),
    "hub.merge": ("Merge",),
    "hub.naming": ("Source",),
    "hub.retention": ("clean",),
    "hub.overview": ("JournalStats", "stats"),
    "hub.store": ("Store",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AccessError",
    "ConflictError",
    "DiskLowError",
    "GapError",
    "HubError",
    "JournalStats",
    "Merge",
    "QuotaError",
    "Source",
    "SourceError",
    "Store",
    "UnavailableError",
    "clean",
    "stats",
]


def __getattr__(name: str) -> object:
    """Fetch a public name from its module at its first use."""
    import importlib

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hub' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
