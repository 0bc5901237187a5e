"""Access control over gRPC: which call a token or a certificate allows, and how a refusal is answered and counted.

:mod:`hub.tokens` has the tokens. An error of a call becomes a status with a reason (:mod:`hub.wire.status`).

A server with tokens serves no caller without one. Under mutual TLS the common name of the certificate is the client id:
the client may write and read only that one.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, cast
from urllib.parse import unquote
from weakref import WeakSet

import grpc

from hub.errors import AccessError, ConflictError, DiskLowError, GapError, UnavailableError
from hub.naming import Source, check_journal
from hub.tokens import Role, Tokens
from hub.wire.status import COMPRESSED, CallEndedError, to_status
from sej.errors import SejError

_ALLOWS: Final[Mapping[Role, str]] = {"reader": "keep a reader's offset on the hub (`sej hub token --reader`)"}

_log = logging.getLogger(__name__)
_PERIOD_S: Final = 60.0
_ASK_AGAIN_S: Final = 1.0
_ADDRESSES: Final = 256
"""Addresses that are logged in one period."""


class Guard:
    """Decides for each call whether its caller is allowed, and turns its error into a status.

    Attributes:
        stopping: set when the hub stops.
        is_open: True if callers need neither a token nor a certificate.
        refusals: calls that ended with an error, by its name in the metadata, and copiers that found themselves that
            they cannot continue.
    """

    def __init__(self, tokens: Tokens | None, *, mutual: bool) -> None:
        """Set the tokens, and whether callers have certificates."""
        self.stopping = threading.Event()
        self.is_open = tokens is None and not mutual
        self.refusals: dict[str, int] = {}
        self._tokens = tokens
        self._mutual = mutual
        self._lock = threading.Lock()
        self._refused: WeakSet[grpc.ServicerContext] = WeakSet()
        self._logged: set[str] = set()
        self._log_until = 0.0
        """Calls that were counted: the sweep and a call's own thread may both find that its permission has ended."""

    def require_running(self) -> None:
        """Check that the hub does not stop."""
        if self.stopping.is_set():
            raise UnavailableError("the hub is stopping; continue when it is back")

    def allow(self, context: grpc.ServicerContext, client: str, journal_dir: str, *roles: Role) -> Source:
        """Return the journal of a call, if its caller has one of the roles for the client.

        Raises:
            AccessError: it does not.
            InvalidNameError: this is not the name of a journal.
        """
        source = check_journal(client, journal_dir)
        self.check(context, client, *roles)
        return source

    @contextmanager
    def answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Turn an error in the block into its status. Answers are compressed if the caller wants that."""
        if COMPRESSED in (context.invocation_metadata() or ()):
            context.set_compression(grpc.Compression.Gzip)
        try:
            yield
        except CallEndedError:
            return
        except (SejError, ValueError) as error:
            self.abort(context, error)
        except OSError as error:
            _log.error("a call failed on the disk: %s", error)
            kind = DiskLowError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            self.abort(context, kind(f"try again later: {error.strerror}", path=error.filename))
        except Exception as error:
            if not context.is_active():
                return  # the caller or gRPC has ended the call already
            _log.exception("a call failed")
            self.abort(context, error)

    def abort(self, context: grpc.ServicerContext, error: Exception) -> None:
        """End a call with an error."""
        self.note(context, error)
        code, text, metadata = to_status(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, text)

    def note(self, context: grpc.ServicerContext, error: Exception) -> None:
        """Count the refusal of a call once; log one that an operator must look at, with the peer's address."""
        name = to_status(error)[2][0][1]
        with self._lock:
            if context in self._refused:
                return
            self._refused.add(context)
            self.refusals[name] = self.refusals.get(name, 0) + 1
        if isinstance(error, (AccessError, ConflictError, GapError)):
            self._log(unquote(context.peer()), error.reason, each=not isinstance(error, AccessError))

    def _log(self, peer: str, reason: str, *, each: bool) -> None:
        """Log a refused call, unless one of its address was logged within this minute; each: one with this reason."""
        address = peer.rpartition(":")[0] if peer.startswith("ip") else peer
        if each:
            address = f"{address}: {reason}"
        with self._lock:
            if time.monotonic() >= self._log_until:
                self._logged, self._log_until = set(), time.monotonic() + _PERIOD_S
            if address in self._logged or len(self._logged) >= _ADDRESSES:
                return
            self._logged.add(address)
        _log.warning("refused %s: %s", peer, reason)

    def may_read(self, context: grpc.ServicerContext, client: str) -> bool:
        """Return whether the caller may read a client's journals; raises if the caller is unknown."""
        try:
            self.check(context, client, "read")
        except AccessError as error:
            if error.known:
                return False
            raise
        return True

    def check(self, context: grpc.ServicerContext, client_id: str, *roles: Role) -> None:
        """Check that a caller has one of the roles for a client.

        Raises:
            AccessError: it does not.
        """
        if self._mutual and client_id not in (names := _certified(context)):
            roles = tuple(role for role in roles if role in ("read", "reader") and self._tokens is not None)
            if not roles:
                raise AccessError(
                    f"the certificate is for client {names[0]!r}, not {client_id!r}; use that client's certificate",
                    known=True,
                )
        if self._tokens is None:
            return
        grant = self._tokens.grant(_shown(context), time.time())
        if not any(grant.allows(role, client_id) for role in roles):
            what = " or ".join(_ALLOWS.get(role, role) for role in roles)
            raise AccessError(
                f"the token does not let you {what} for {client_id!r}; ask the hub's operator for another token",
                known=True,
            )

    def identify(self, context: grpc.ServicerContext, role: Role | None = None) -> None:
        """Check that the hub knows the caller; :meth:`check` decides what it may do.

        Raises:
            AccessError: no certificate, no token, or an unknown or expired one; or the token has another role.
        """
        if self._mutual:
            _certified(context)
        if self._tokens is not None:
            grant = self._tokens.grant(_shown(context), time.time())
            if role not in (None, grant.role) and (role, grant.role) != ("read", "reader"):
                raise AccessError(f"the token lets you {grant.role} only; use one that lets you {role}", known=True)


class Call:
    """A call that lasts: whether its caller may continue is checked again once a second, and for each name.

    Attributes:
        context: gRPC's part of it.
        guard: decides.
    """

    def __init__(self, guard: Guard, context: grpc.ServicerContext, role: Role) -> None:
        """Start before the call has named a journal."""
        self.context = context
        self.guard = guard
        self._role: Role = role
        self._named = "", ""
        self._ask_at = 0.0

    def allow(self, client: str, journal_dir: str) -> Source:
        """Check the caller's right to a journal, and return it; that journal is checked from now on."""
        source = self.guard.allow(self.context, client, journal_dir, self._role)
        self._named, self._ask_at = (client, journal_dir), time.monotonic() + _ASK_AGAIN_S
        return source

    def check(self) -> None:
        """Check that the call may continue. Before it has named a journal, the hub must know the caller.

        Raises:
            AccessError: it may not, because its token was revoked.
            UnavailableError: the hub is stopping.
        """
        self.guard.require_running()
        if time.monotonic() < self._ask_at:
            return
        if self._named[0]:
            self.allow(*self._named)
        else:
            self.guard.identify(self.context)
            self._ask_at = time.monotonic() + _ASK_AGAIN_S


def _certified(context: grpc.ServicerContext) -> list[str]:
    """Return the names in the caller's certificate."""
    shown = cast("dict[str, list[bytes]]", context.auth_context())
    names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", [])]
    if not names:
        raise AccessError(
            "this hub requires a client certificate, and none was sent: pass ClientTLS(certificate=, key=), or"
            " --certificate and --key"
        )
    return names


def _shown(context: grpc.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise AccessError(
        "this hub requires a token: pass token=, --token-file or hubToken (Spark); in gRPC the metadata, in HTTP the"
        " header 'authorization: Bearer TOKEN'"
    )
