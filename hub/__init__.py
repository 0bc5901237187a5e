"""The hub: the journals of many clients in one place, one SEJ directory for each.

This package has no network code: :class:`Store` stores messages, :class:`Merge` reads all directories back as one
stream. ``hub.wire`` adds gRPC; importing ``hub`` loads none of it. Public names are imported at their first use.
The modules, in the order in which they are best read::

    naming, store                          names of directories; what stores messages
    batch                                  what a client sends, and may send
    readers, jobs                          readers and jobs of programs on other machines
    merge                                  all journals as one stream, and what of it is committed
    overview                               what is there, and how long it stays
    tokens, certificates                   who may call
    cli, credentials                       sej hub; the options of a connection
    errors, asgi                           the errors; a server of ASGI applications
    wire, http, page                       gRPC; HTTP with JSON; the web page
"""

from __future__ import annotations

from sej.imports import TYPE_CHECKING
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from hub.errors import AccessError as AccessError
    from hub.errors import ConflictError as ConflictError
    from hub.errors import DiskLowError as DiskLowError
    from hub.errors import GapError as GapError
    from hub.errors import HubError as HubError
    from hub.errors import NotSupportedError as NotSupportedError
    from hub.errors import QuotaError as QuotaError
    from hub.errors import ReaderHeldError as ReaderHeldError
    from hub.errors import SourceError as SourceError
    from hub.errors import UnavailableError as UnavailableError
    from hub.merge import Merge as Merge
    from hub.naming import Source as Source
    from hub.overview import JournalStats as JournalStats
    from hub.overview import clean as clean
    from hub.overview import stats as stats
    from hub.store import Store as Store
else:
    __getattr__, __dir__, __all__ = _lazily(__name__, {
        "hub.errors": (
            "AccessError", "ConflictError", "DiskLowError", "GapError", "HubError", "NotSupportedError",
            "QuotaError", "ReaderHeldError", "SourceError", "UnavailableError",
        ),
        "hub.merge": ("Merge",),
        "hub.naming": ("Source",),
        "hub.overview": ("JournalStats", "clean", "stats"),
        "hub.store": ("Store",),
    }, ("wire",))  # fmt: skip
