"""Who may do what: tokens with roles, kept as hashes in a file that is read again when it changes.

One line a token, ``#`` starts a comment::

    # sha-256 of the token                                             role   clients     until (optional)
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08   write  EWR         2027-01-01T00:00:00Z
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752   read   J*,LGA

``write`` is for one client id, ``read`` for patterns of client ids (``*`` and ``?``). A server with tokens serves no
one without; a file with a bad line serves no one at all, because half a list of who may come in is not a list. Tokens
are 32 random bytes, so a plain hash hides them; comparing takes the same time whichever one it is.

Under mutual TLS the common name of the certificate is the client id: it may write for that one only, and read it.
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
        role: ``"write"`` for one client, ``"read"`` for those that match.
        clients: a client id, or patterns.
        until: when it ends, seconds since the epoch; None: never.
    """

    digest: str
    role: Role
    clients: tuple[str, ...]
    until: float | None = None

    def allows(self, role: Role, client_id: str) -> bool:
        """Whether it is enough for this."""
        return role == self.role and any(fnmatchcase(client_id, pattern) for pattern in self.clients)


def make_token() -> str:
    """A new token: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What of a token stands in the file."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The tokens that a server knows.

    Example:
        >>> token = make_token()
        >>> tokens = Tokens([Grant(hash_token(token), "write", ("client-1",))])
        >>> tokens.grant(token, 0.0).role
        'write'
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[Grant]) -> None:
        """Know a file of tokens, read again whenever it changes, or grants as they are.

        Raises:
            AccessError: the file has a bad line.
            OSError: it cannot be read.
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
        """What a token allows at a time (seconds since the epoch).

        Raises:
            AccessError: it is unknown or has expired.
            UnavailableError: the file cannot be read as it stands now.
        """
        digest = hash_token(token)
        found = None
        for grant in self._current():
            if hmac.compare_digest(grant.digest, digest):  # no early end: every call compares with all of them
                found = grant
        if found is None:
            raise AccessError("the hub does not know this token")
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
                _log.error("nobody is served: %s", error)
                raise UnavailableError("the hub cannot read its list of tokens; its operator mends it") from error
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
                f"{path}, line {number}: a SHA-256 in hex, 'write' and a client id or 'read' and patterns, and perhaps"
                " a time with its zone are due; nobody is served until it is mended"
            ) from error
        if grant is not None:
            grants.append(grant)
    return grants


def parse_line(line: str) -> Grant | None:
    """What a line of the file allows; None where it says nothing.

    Raises:
        ValueError: it is no such line.
    """
    words = line.partition("#")[0].split()
    if not words:
        return None
    digest, role, clients, *rest = words
    until = datetime.fromisoformat(rest[0]) if rest else None
    if len(digest) != 64 or len(rest) > 1 or (until is not None and until.tzinfo is None):
        raise ValueError(line)
    digest = bytes.fromhex(digest).hex()  # as hash_token() writes it
    if role == "write":
        try:
            check_client(clients)
        except SejError as error:
            raise ValueError(line) from error
    elif role != "read":
        raise ValueError(line)
    return Grant(digest, cast("Role", role), tuple(clients.split(",")), until.timestamp() if until else None)


class Guard:
    """Decides for each call whether its caller may do it."""

    def __init__(self, tokens: Tokens | None, *, mutual: bool) -> None:
        """Know the tokens, and whether callers show certificates."""
        self._tokens = tokens
        self._mutual = mutual

    def check(self, context: grpc.ServicerContext, role: Role, client_id: str, now: float) -> None:
        """Let a call pass or not.

        Raises:
            AccessError: it may not.
        """
        if self._mutual:
            names = _certified(context)
            if client_id not in names and not (role == "read" and self._tokens is not None):
                raise AccessError(f"the certificate is {names[0]!r}'s, not {client_id!r}'s", known=True)
        if self._tokens is None:
            return
        grant = self._tokens.grant(_shown(context), now)
        if not grant.allows(role, client_id):
            raise AccessError(f"the token does not allow to {role} for {client_id!r}", known=True)

    def identify(self, context: grpc.ServicerContext, now: float) -> None:
        """Let nobody in whom the hub does not know; what they may do is for :meth:`check`.

        Raises:
            AccessError: no certificate, no token, or one that is unknown or has expired.
        """
        if self._mutual:
            _certified(context)
        if self._tokens is not None:
            self._tokens.grant(_shown(context), now)


def _certified(context: grpc.ServicerContext) -> list[str]:
    """The names in the caller's certificate."""
    shown = cast("dict[str, list[bytes]]", context.auth_context())
    names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", [])]
    if not names:
        raise AccessError("no certificate was shown")
    return names


def _shown(context: grpc.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise AccessError("this hub wants a token: metadata 'authorization: Bearer ...'")
