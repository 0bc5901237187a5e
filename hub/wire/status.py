"""Errors as gRPC statuses and back.

Every caller understands the status; our clients read trailing metadata too: ``sej-error`` names the error,
``sej-expected``, ``sej-first`` and ``sej-offset`` carry its numbers. The text is the error's reason, without paths of
the server: the client names hub and journal instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import grpc

from hub.errors import (
    AccessError,
    ConflictError,
    DiskLowError,
    GapError,
    HubError,
    NotSupportedError,
    QuotaError,
    ReaderHeldError,
    UnavailableError,
)
from sej.errors import (
    CorruptionError,
    DecodeError,
    FileTypeError,
    InvalidMessageError,
    InvalidNameError,
    JournalNotFoundError,
    LeaseLostError,
    LockedError,
    NotAJournalError,
    OffsetBeyondEndError,
    OffsetTooSmallError,
    SejError,
    TruncatedError,
    WriterFailedError,
)
from shard.staging import StagedRowsError

COMPRESSED: Final = ("sej-compression", "gzip")
"""The metadata of a call whose caller wants compressed answers."""


class CallEndedError(Exception):
    """The caller has ended the call: no answer is needed."""


class BusyError(UnavailableError):
    """The hub serves as many callers as its limits allow; try again later."""


class DirectoryUnavailableError(UnavailableError):
    """One directory of the hub is not available now; others may be."""


class HandshakeError(UnavailableError):
    """The hub and the caller do not agree about TLS or certificates: an operator must correct a setting."""


class TooLargeError(HubError):
    """A request or an answer exceeds the hub's limit; trying again does not help."""


_CODES: Final[tuple[tuple[type[BaseException], grpc.StatusCode, str, int], ...]] = (
    (GapError, grpc.StatusCode.FAILED_PRECONDITION, "gap", 409),
    (ConflictError, grpc.StatusCode.ALREADY_EXISTS, "conflict", 409),
    (QuotaError, grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", 507),
    (BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", 429),
    (TooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED, "too-large", 413),
    (DiskLowError, grpc.StatusCode.UNAVAILABLE, "disk-low", 507),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE, "unavailable", 503),
    (ReaderHeldError, grpc.StatusCode.FAILED_PRECONDITION, "held", 409),
    (LeaseLostError, grpc.StatusCode.FAILED_PRECONDITION, "lease-lost", 409),
    (OffsetBeyondEndError, grpc.StatusCode.FAILED_PRECONDITION, "beyond-end", 409),
    (LockedError, grpc.StatusCode.UNAVAILABLE, "directory", 503),
    (WriterFailedError, grpc.StatusCode.UNAVAILABLE, "directory", 503),
    (InvalidNameError, grpc.StatusCode.INVALID_ARGUMENT, "name", 400),
    (InvalidMessageError, grpc.StatusCode.INVALID_ARGUMENT, "message", 400),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT, "message", 400),
    (OffsetTooSmallError, grpc.StatusCode.OUT_OF_RANGE, "deleted", 410),
    (JournalNotFoundError, grpc.StatusCode.NOT_FOUND, "unknown", 404),
    (NotAJournalError, grpc.StatusCode.UNAVAILABLE, "directory", 503),
    (FileTypeError, grpc.StatusCode.UNAVAILABLE, "directory", 503),
    (StagedRowsError, grpc.StatusCode.FAILED_PRECONDITION, "staged", 500),
    (CorruptionError, grpc.StatusCode.DATA_LOSS, "corruption", 500),
    (TruncatedError, grpc.StatusCode.DATA_LOSS, "corruption", 500),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT, "argument", 400),
)
"""Errors with their status over gRPC, their name, and their status over HTTP.

The first match counts; subclasses precede their bases.
"""
HTTP_STATUSES: Final = {name: status for _, _, name, status in _CODES}
_NAMED: Final[dict[str, type[SejError]]] = {
    **{name: kind for kind, _, name, _ in reversed(_CODES) if issubclass(kind, SejError)},
    "directory": DirectoryUnavailableError,
    "argument": InvalidMessageError,
}
"""Maps each name to the caller's error; of several errors with one name, the first."""
REASONS: Final = ("access", *_NAMED)
"""All reasons of refusals: a metric that appears only with its first refusal would hide it from an alert."""
_LATER: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""The status of a broken connection or a restart."""


ORIGINAL: Final = (
    "an original hub takes messages (put, copy and the copier), but cannot report offsets, list journals or give"
    " messages back; read its directory on its own machine"
)
_HANDSHAKE: Final = ("WRONG_VERSION_NUMBER", "CERTIFICATE_VERIFY_FAILED")
_ORIGINAL_GAP: Final = "Marshal called with nil"


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the status, its text and its metadata."""
    if isinstance(error, AccessError):
        code = grpc.StatusCode.PERMISSION_DENIED if error.known else grpc.StatusCode.UNAUTHENTICATED
        return code, error.reason, (("sej-error", "access"),)
    reason = error.reason if isinstance(error, SejError) else str(error)
    if type(error) is UnavailableError and error.path is not None:
        return grpc.StatusCode.UNAVAILABLE, reason, (("sej-error", "directory"),)
    for kind, code, name, _ in _CODES:
        if isinstance(error, kind):
            extra: tuple[tuple[str, str], ...] = ()
            if isinstance(error, GapError):
                extra = (("sej-expected", str(error.expected)),)
            elif isinstance(error, OffsetTooSmallError):
                extra = (("sej-first", str(error.first_available)),)
            if isinstance(error, SejError) and error.offset is not None:
                extra = (*extra, ("sej-offset", str(error.offset)))
            return code, reason, (("sej-error", name), *extra)
    return grpc.StatusCode.INTERNAL, f"the hub failed: {type(error).__name__}", (("sej-error", "internal"),)


def from_rpc_error(error: grpc.RpcError, address: str, journal: str = "", *, tls: bool = False) -> SejError:
    """Return the hub's error, or an error for the connection, which was made with TLS or without.

    Args:
        error: gRPC's error.
        address: the hub's address.
        journal: the client and journal of the call, or the client; empty if the call has none.
        tls: whether the connection uses TLS.
    """
    hub = f"hub at {address}" + (f", journal {journal}" if journal else "")
    code: grpc.StatusCode = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else None) or "no details"
    trailing = (error.trailing_metadata() if hasattr(error, "trailing_metadata") else None) or ()
    said = {key: value for key, value in cast("Iterable[tuple[str, str | bytes]]", trailing) if isinstance(value, str)}
    name = said.get("sej-error", "")
    offset = int(said["sej-offset"]) if "sej-offset" in said else None
    if name == "gap":
        return GapError(details, expected=int(said.get("sej-expected", "0")), path=hub, offset=offset)
    if name == "deleted":
        return OffsetTooSmallError(details, first_available=int(said.get("sej-first", "0")), path=hub, offset=offset)
    if name == "access" or code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return AccessError(details, known=code is grpc.StatusCode.PERMISSION_DENIED, path=hub)
    if name in _NAMED:
        reason = f"the hub's copy is damaged: {details}" if name == "corruption" else details
        found = _NAMED[name](reason, path=hub)
        found.offset = offset
        return found
    where = f"{hub}: {code.name}: {details}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotSupportedError(f"{where}; {ORIGINAL}")
    if code is grpc.StatusCode.INTERNAL and _ORIGINAL_GAP in details:
        return GapError(
            f"{where}; this is how an original hub refuses a gap: messages are missing before these, and it does not"
            " report which; send the journal again from offset 0 (such a hub drops the messages that it has)",
            expected=-1,
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooLargeError(where) if "larger than max" in details.lower() else BusyError(where)
    hint = _hint(details, tls)
    if code in _LATER and any(sign in details for sign in _HANDSHAKE):
        return HandshakeError(where + hint)
    return (UnavailableError if code in _LATER else HubError)(where + hint)


def _hint(details: str, tls: bool) -> str:
    """Suggest why a connection could not be made."""
    if "WRONG_VERSION_NUMBER" in details and tls:
        return "; the hub uses plain text on this address, without TLS"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "; the hub's certificate is not signed by the given authority (ca), or has expired"
    if "Hostname Verification Check failed" in details:
        return "; the hub's certificate has another name: pass server_name, --server-name or hubServerName (Spark)"
    if "Connection refused" in details:
        return "; no hub listens on this address: check it, or start the hub there (sej hub serve)"
    if "failed to connect" in details and "Socket closed" in details:
        if tls:
            return "; the hub may require a client certificate (mutual TLS)"
        return "; the hub may require TLS: pass the authority that signed its certificate (ca, --ca or hubCa in Spark)"
    return ""
