"""The errors of sharded journals, in addition to those of one journal.

::

    SejError
    ├── RouteError                 the keys of a sharded journal are routed in another way
    └── ShardsFailedError          some shards failed, the others did not         .errors .appended
        ├── ShardsLockedError      other processes hold all of these; a LockedError too
        └── ShardsBrokenError      the writers of all of these failed; a WriterFailedError too
"""

from __future__ import annotations

from collections.abc import Mapping

from sej.errors import LockedError, SejError, WriterFailedError


class RouteError(SejError):
    """The keys of a sharded journal are routed in another way: an append would split them. Nothing was appended."""


class ShardsFailedError(SejError):
    """An operation failed in some shards; the others completed their part.

    Attributes:
        errors: the errors, by the shard's index.
        appended: the offsets that the other shards assigned, by index; empty if nothing was to be appended.
    """

    errors: Mapping[int, BaseException]
    appended: Mapping[int, range]


class ShardsLockedError(ShardsFailedError, LockedError):
    """Other processes hold all the shards that failed."""


class ShardsBrokenError(ShardsFailedError, WriterFailedError):
    """A write or sync failed in all the shards that failed: reopen the writer."""


def shards_failed(
    what: str, path: str, errors: Mapping[int, BaseException], appended: Mapping[int, range] | None = None
) -> ShardsFailedError:
    """Return the error for failures in some shards, of the most specific class that fits all of them."""
    kind: type[ShardsFailedError] = ShardsFailedError
    if all(isinstance(error, LockedError) for error in errors.values()):
        kind = ShardsLockedError
    elif all(isinstance(error, WriterFailedError) for error in errors.values()):
        kind = ShardsBrokenError
    numbers = ", ".join(f"{index:03x}" for index in sorted(errors))
    first = errors[min(errors)]
    rest = f" (and {len(errors) - 1} more: see .errors)" if len(errors) > 1 else ""
    error = kind.__new__(kind)
    SejError.__init__(
        error, f"{what} failed in shard {numbers}; the other shards completed their part. {first}{rest}", path=path
    )
    error.errors = dict(errors)
    error.appended = dict(appended or {})
    if isinstance(error, LockedError):
        error.holder = first.holder if isinstance(first, LockedError) else None
    return error
