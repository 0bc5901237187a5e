"""Access control over gRPC: which call a token or a certificate allows. :mod:`hub.tokens` has the tokens.

A server with tokens serves no caller without one. Under mutual TLS the common name of the certificate is the client id:
the client may write and read only that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import grpc

from hub.errors import AccessError
from hub.tokens import Grant, Role, Tokens, hash_token, make_token, parse_line

__all__ = ["Grant", "Guard", "Role", "Tokens", "hash_token", "make_token", "parse_line"]

_ALLOWS: Final[Mapping[Role, str]] = {"reader": "keep a reader's offset on the hub (`sej hub token --reader`)"}


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
