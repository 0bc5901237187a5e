"""Access control: tokens with roles, stored as hashes in a file that is read again when it changes.

One token per line; ``#`` starts a comment::

    # sha-256 of the token                                             role   clients     until (optional)
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08   write  EWR         2027-01-01T00:00:00Z
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752   read   J*,LGA

``write`` is for one client id, ``read`` for patterns of client ids (``*`` and ``?``). A server with tokens serves no
caller without one. If the file has a bad line, the server refuses every caller, because part of an access list is not
an access list. Tokens are 32 random bytes, so a plain hash hides them; the comparison takes the same time for every
token.

Under mutual TLS the common name of the certificate is the client id: the client may write and read only that one.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple, cast

import grpc

from hub.errors import AccessError, UnavailableError
from hub.naming import check_client
from sej.checks import ITERABLE, PATH
from sej.errors import SejError

__all__ = ["Grant", "Guard", "Role", "Tokens", "hash_token", "make_token", "parse_line"]

Role = Literal["read", "write"]
_log = logging.getLogger(__name__)


class Grant(NamedTuple):
    """What one token allows.

    Attributes:
        digest: the token's SHA-256, in hex.
        role: ``"write"`` for one client, ``"read"`` for matching ones.
        clients: a client id, or patterns.
        until: when it expires, seconds since the epoch; None: never.
    """

    digest: str
    role: Role
    clients: tuple[str, ...]
    until: float | None = None

    def allows(self, role: Role, client_id: str) -> bool:
        """Return whether the grant allows this role for the client."""
        return role == self.role and any(fnmatchcase(client_id, pattern) for pattern in self.clients)


def make_token() -> str:
    """Return a new token: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the hash of a token, as the file stores it."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The tokens that a server accepts.

    Example:
        >>> token = make_token()
        >>> tokens = Tokens([Grant(hash_token(token), "write", ("client-1",))])
        >>> tokens.grant(token, 0.0).role
        'write'
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[Grant]) -> None:
        """Use a file of tokens, which is read again when it changes, or grants.

        Raises:
            AccessError: the file has a bad line.
            OSError: the file cannot be read.
        """
        if isinstance(source, (str, os.PathLike)):
            PATH("source", source)
        else:
            ITERABLE("source", source)
        self._path: Path | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._grants: list[Grant] = []
        self._lock = threading.Lock()
        if isinstance(source, (str, os.PathLike)):
            self._path = Path(source)
            self._load(os.stat(source))
        else:
            self._grants = list(source)

    def grant(self, token: str, now: float) -> Grant:
        """Return what a token allows at a time (seconds since the epoch).

        Raises:
            AccessError: the token is unknown or has expired.
            UnavailableError: the file cannot be read at the moment.
        """
        digest = hash_token(token)
        found = None
        for grant in self._current():
            if hmac.compare_digest(grant.digest, digest):  # no early return: every call compares with all of them
                found = grant
        if found is None:
            raise AccessError("unknown token")
        if found.until is not None and now >= found.until:
            raise AccessError(f"the token expired at {datetime.fromtimestamp(found.until, UTC).isoformat()}")
        return found

    def _current(self) -> list[Grant]:
        if self._path is None:
            return self._grants
        with self._lock:
            try:
                status = os.stat(self._path)
                if _stamp(status) != self._stamp:
                    self._load(status)
            except (OSError, AccessError) as error:
                _log.error("every caller is refused: %s", error)
                raise UnavailableError(
                    "the hub cannot read its list of tokens; its operator must correct the file"
                ) from error
            return self._grants

    def _load(self, status: os.stat_result) -> None:
        assert self._path is not None
        self._stamp, self._grants = None, []
        self._grants = _parse(self._path)
        self._stamp = _stamp(status)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parse(path: Path) -> list[Grant]:
    grants = []
    for number, line in enumerate(path.read_text(errors="backslashreplace").splitlines(), 1):
        try:
            grant = parse_line(line)
        except ValueError as error:
            raise AccessError(
                f"{path}, line {number}: expected a SHA-256 in hex, 'write' and a client id or 'read' and patterns,"
                " and optionally a time with a zone; every caller is refused until this is corrected"
            ) from error
        if grant is not None:
            grants.append(grant)
    return grants


def parse_line(line: str) -> Grant | None:
    """Parse a line of the file; None if it is empty or a comment.

    Raises:
        ValueError: the line cannot be parsed.
    """
    words = line.partition("#")[0].split()
    if not words:
        return None
    digest, role, clients, *rest = words
    until = datetime.fromisoformat(rest[0]) if rest else None
    if len(digest) != 64 or len(rest) > 1 or (until is not None and until.tzinfo is None):
        raise ValueError(line)
    digest = bytes.fromhex(digest).hex()  # normalised like hash_token()
    if role == "write":
        try:
            check_client(clients)
        except SejError as error:
            raise ValueError(line) from error
    elif role != "read":
        raise ValueError(line)
    return Grant(digest, cast("Role", role), tuple(clients.split(",")), until.timestamp() if until else None)


class Guard:
    """Decides for each call whether its caller is allowed."""

    def __init__(self, tokens: Tokens | None, *, mutual: bool) -> None:
        """Set the tokens, and whether callers have certificates."""
        self._tokens = tokens
        self._mutual = mutual

    def check(self, context: grpc.ServicerContext, role: Role, client_id: str, now: float) -> None:
        """Check that a caller may do a call.

        Raises:
            AccessError: it may not.
        """
        if self._mutual:
            names = _certified(context)
            if client_id not in names and not (role == "read" and self._tokens is not None):
                raise AccessError(f"the certificate is for client {names[0]!r}, not {client_id!r}", known=True)
        if self._tokens is None:
            return
        grant = self._tokens.grant(_shown(context), now)
        if not grant.allows(role, client_id):
            raise AccessError(f"the token does not allow to {role} for {client_id!r}", known=True)

    def identify(self, context: grpc.ServicerContext, now: float, role: Role | None = None) -> None:
        """Check that the hub knows the caller; :meth:`check` decides what it may do.

        Raises:
            AccessError: no certificate, no token, or an unknown or expired one; or the token has another role.
        """
        if self._mutual:
            _certified(context)
        if self._tokens is not None:
            grant = self._tokens.grant(_shown(context), now)
            if role not in (None, grant.role):
                raise AccessError(
                    f"the token allows to {grant.role} only; use a token that allows to {role}", known=True
                )


def _certified(context: grpc.ServicerContext) -> list[str]:
    """Return the names in the caller's certificate."""
    shown = cast("dict[str, list[bytes]]", context.auth_context())
    names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", [])]
    if not names:
        raise AccessError("no client certificate was sent")
    return names


def _shown(context: grpc.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise AccessError("this hub requires a token: metadata 'authorization: Bearer ...'")
