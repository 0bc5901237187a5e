"""What the hub refuses, and why: a branch of the tree in ``sej/errors.py``.

::

    HubError (a sej.SejError)
    ├── GapError            messages are missing before these               .expected
    ├── ConflictError       a known offset came again with other bytes
    ├── QuotaError          the client has used up its bytes
    ├── UnavailableError    not now: try later
    │   └── DiskLowError    the disk is nearly full
    ├── NotSupportedError   this hub does not know the call: an original hub knows two
    ├── AccessError         no token, or one that does not allow this
    └── SourceError         one directory of a merge cannot be read         .source

Names that could leave the root are :class:`sej.InvalidNameError`, messages that the format has no room for
:class:`sej.InvalidMessageError`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sej.errors import SejError

if TYPE_CHECKING:
    from hub.naming import Source

__all__ = [
    "AccessError",
    "ConflictError",
    "DiskLowError",
    "GapError",
    "HubError",
    "NotSupportedError",
    "QuotaError",
    "SourceError",
    "UnavailableError",
]


class HubError(SejError):
    """Base of the hub's own errors."""


class GapError(HubError):
    """The messages do not follow what the hub has. Nothing of them was taken.

    Attributes:
        expected: the offset that the hub expects; -1: the hub did not report it.
    """

    def __init__(
        self,
        reason: str,
        *,
        expected: int,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
    ) -> None:
        """Keep what is due."""
        super().__init__(reason, path=path, offset=offset)
        self.expected = expected


class ConflictError(HubError):
    """A message that the hub has came again with other bytes: two journals use one name, or one was made anew."""


class NotSupportedError(HubError):
    """This hub does not know the call. An original hub takes messages; it gives none back and reports no offsets."""


class QuotaError(HubError):
    """The client's directories hold as many bytes as it may have."""


class UnavailableError(HubError):
    """The hub cannot do it now; the same call may succeed later."""


class DiskLowError(UnavailableError):
    """Less disk is free than the hub keeps in reserve; nothing was written."""


class AccessError(HubError):
    """The caller showed no token, an unknown or expired one, or one that does not allow this.

    Attributes:
        known: whether the token itself was good.
    """

    def __init__(self, reason: str, *, known: bool = False) -> None:
        """Keep whether the caller is known."""
        super().__init__(reason)
        self.known = known


class SourceError(HubError):
    """One client directory of a merge cannot be read; the others can. ``__cause__`` says why.

    Attributes:
        source: whose directory; ``Merge.skip(source)`` goes on without it.
    """

    def __init__(
        self, reason: str, *, source: Source, path: str | os.PathLike[str] | None = None, offset: int | None = None
    ) -> None:
        """Keep the source."""
        super().__init__(reason, path=path, offset=offset)
        self.source = source
