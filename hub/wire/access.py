"""Access control over gRPC: which call a token or a certificate allows. :mod:`hub.tokens` has the tokens.

A server with tokens serves no caller without one. Under mutual TLS the common name of the certificate is the client id:
the client may write and read only that one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, cast
from urllib.parse import unquote

import grpc

from hub.errors import AccessError
from hub.tokens import Grant, Role, Tokens, hash_token, make_token, parse_line

__all__ = ["Grant", "Guard", "Refusals", "Role", "Tokens", "hash_token", "make_token", "parse_line"]

_ALLOWS: Final[Mapping[Role, str]] = {"reader": "keep a reader's offset on the hub (`sej hub token --reader`)"}

_log = logging.getLogger(__name__)
_PERIOD_S: Final = 60.0
_ADDRESSES: Final = 256
"""Addresses that are logged in one period; of further ones only the number of calls."""


class Refusals:
    """Logs refused calls, at most twice a minute for each address: the first one, and how many more there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set a clock in seconds that never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._more: dict[str, int] = {}
        self._until = clock() + _PERIOD_S

    def log(self, peer: str, reason: str, *, each: bool = False) -> None:
        """Log a refused call, unless one of its address was logged within this minute; each: one with this reason."""
        peer = unquote(peer)
        address = peer.rpartition(":")[0] if peer.startswith("ip") else peer
        if each:
            address = f"{address}: {reason}"
        self.end_period()
        with self._lock:
            is_first = address not in self._more and len(self._more) < _ADDRESSES
            if not is_first and address not in self._more:
                address = "other addresses"
            self._more[address] = 0 if is_first else self._more.get(address, 0) + 1
        if is_first:
            _log.warning("refused %s: %s", peer, reason)

    def end_period(self) -> None:
        """If a minute has passed, log how many more calls were refused in it."""
        with self._lock:
            if self._clock() < self._until:
                return
            ended, self._more, self._until = self._more, {}, self._clock() + _PERIOD_S
        for address, more in ended.items():
            if more:
                _log.warning("refused %d more calls of %s", more, address)


class Guard:
    """Decides for each call whether its caller is allowed."""

    def __init__(self, tokens: Tokens | None, *, mutual: bool) -> None:
        """Set the tokens, and whether callers have certificates."""
        self._tokens = tokens
        self._mutual = mutual

    def check(
        self, context: grpc.ServicerContext, role: Role, client_id: str, now: float, others: tuple[Role, ...] = ()
    ) -> None:
        """Check that a caller may do a call. ``others`` are roles that would allow it too, for the error only.

        Raises:
            AccessError: it may not.
        """
        if self._mutual:
            names = _certified(context)
            if client_id not in names and not (role in ("read", "reader") and self._tokens is not None):
                raise AccessError(
                    f"the certificate is for client {names[0]!r}, not {client_id!r}; use that client's certificate",
                    known=True,
                )
        if self._tokens is None:
            return
        grant = self._tokens.grant(_shown(context), now)
        if not grant.allows(role, client_id):
            what = " or ".join(_ALLOWS.get(each, each) for each in (role, *others))
            raise AccessError(
                f"the token does not allow to {what} for {client_id!r}; use one that does, from the hub's operator",
                known=True,
            )

    def identify(self, context: grpc.ServicerContext, now: float, role: Role | None = None) -> None:
        """Check that the hub knows the caller; :meth:`check` decides what it may do.

        Raises:
            AccessError: no certificate, no token, or an unknown or expired one; or the token has another role.
        """
        if self._mutual:
            _certified(context)
        if self._tokens is not None:
            grant = self._tokens.grant(_shown(context), now)
            if role not in (None, grant.role) and (role, grant.role) != ("read", "reader"):
                raise AccessError(
                    f"the token allows to {grant.role} only; use a token that allows to {role}", known=True
                )


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
        "this hub requires a token: pass token=, --token-file or hubToken (Spark); in gRPC the metadata 'authorization:"
        " Bearer TOKEN'"
    )
