"""The hub's errors: a branch of the tree in ``sej/errors.py``.

::

    HubError (a sej.SejError)
    ├── GapError            messages before these are missing               .expected
    ├── ConflictError       a stored offset was sent again with other bytes
    ├── QuotaError          the client has used up its bytes
    ├── UnavailableError    not possible now: try again later
    │   └── DiskLowError    the disk is nearly full
    ├── ReaderHeldError     another program has the reader (a sej.LockedError too)
    ├── NotSupportedError   this hub does not know the call: an original hub knows two
    ├── AccessError         no token, or a token that does not allow the call
    └── SourceError         one directory of a merge cannot be read         .source

A name with characters that are not allowed is a :class:`sej.InvalidNameError`, a message that does not fit the format a
:class:`sej.InvalidMessageError`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sej.errors import LockedError, SejError

if TYPE_CHECKING:
    from hub.naming import Source


class HubError(SejError):
    """Base of the hub's own errors."""


class GapError(HubError):
    """The messages do not follow the stored ones. None of them was stored.

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
        """Store the expected offset."""
        super().__init__(reason, path=path, offset=offset)
        self.expected = expected


class ConflictError(HubError):
    """A stored message was sent again with other bytes: two journals use one name, or one was re-created."""


class NotSupportedError(HubError):
    """This hub does not know the call. An original hub takes messages; it gives none back and reports no offsets."""


class QuotaError(HubError):
    """The client's directories hold as many bytes as its quota allows."""


class UnavailableError(HubError):
    """The hub cannot do it now; the same call may succeed later."""


class DiskLowError(UnavailableError):
    """Less disk space is free than the hub keeps in reserve; nothing was written."""


class AccessError(HubError):
    """The caller sent no token, an unknown or expired one, or one that does not allow the call.

    Attributes:
        known: True if the token itself was valid.
    """

    def __init__(self, reason: str, *, known: bool = False, path: str | os.PathLike[str] | None = None) -> None:
        """Store whether the caller is known."""
        super().__init__(reason, path=path)
        self.known = known


class ReaderHeldError(HubError, LockedError):
    """Another program has the named reader, and its lease has not ended."""


class SourceError(HubError):
    """One client directory of a merge cannot be read; the others can. ``__cause__`` has the reason.

    Attributes:
        source: the directory's client and journal; ``Merge.skip(source)`` continues without it.
    """

    def __init__(
        self, reason: str, *, source: Source, path: str | os.PathLike[str] | None = None, offset: int | None = None
    ) -> None:
        """Store the source."""
        super().__init__(reason, path=path, offset=offset)
        self.source = source
