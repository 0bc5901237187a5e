"""Tokens with roles, stored as hashes in a file that is read again when it changes.

One token per line; ``#`` starts a comment::

    # sha-256 of the token                                             role   clients     until (optional)
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08   write  EWR         2027-01-01T00:00:00Z
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752   read   J*,LGA
    fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9   view   alice
    2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6   change bob

``write`` (put and copy, under the client's own offsets) and ``append`` (jobs, whose offsets the hub assigns) are for
one client id, ``read`` for patterns of client ids (``*`` and ``?``). ``reader`` is ``read`` with named readers, whose
offsets the hub keeps. ``view`` and ``change`` are for a
person who opens the web page: ``change`` also allows the changes that the page offers. If the file has a bad line, the
server refuses every caller, because part of an access list is not an access list. Tokens are 32 random bytes, so a
plain hash hides them; the comparison takes the same time for every token. So any user may read the file. If others may
write it, they could add a token, and it is refused, as sshd refuses such an ``authorized_keys``.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import shlex
import stat
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple, cast

from hub.errors import AccessError, UnavailableError
from hub.naming import check_client
from sej.checks import ITERABLE, PATH
from sej.errors import SejError
from sej.system.disk import absolute_path

Role = Literal["read", "reader", "write", "append", "view", "change"]
_log = logging.getLogger(__name__)


class Grant(NamedTuple):
    """What one token allows.

    Attributes:
        digest: the token's SHA-256, in hex.
        role: ``"write"`` or ``"append"`` for one client, ``"read"`` and ``"reader"`` for matching ones, ``"view"`` and
            ``"change"`` for a person.
        clients: a client id, or patterns, or the person's name.
        until: when it expires, seconds since the epoch; None: never.
    """

    digest: str
    role: Role
    clients: tuple[str, ...]
    until: float | None = None

    def allows(self, role: Role, client_id: str) -> bool:
        """Return whether the grant allows this role for the client."""
        known = role == self.role or (role, self.role) == ("read", "reader")
        return known and any(fnmatchcase(client_id, pattern) for pattern in self.clients)


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
            AccessError: the file has a bad line, or others may write it.
            OSError: the file cannot be read.
        """
        self._path: Path | None = None
        self._stamp: tuple[int, int, int, int] | None = None
        self._wrong = ""
        """The error that was logged last."""
        self._grants: list[Grant] = []
        self._lock = threading.Lock()
        if isinstance(source, (str, os.PathLike)):
            PATH("source", source)
            self._path = Path(absolute_path(source))
            status = os.stat(source)
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise AccessError(
                    f"other users may write this file (mode {stat.S_IMODE(status.st_mode):o}), and so add a token;"
                    f" run `chmod go-w {shlex.quote(str(source))}`",
                    path=source,
                )
            self._load(status)
        else:
            ITERABLE("source", source)
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
            raise AccessError("unknown token; the hub's operator adds it with a line of `sej hub token`")
        if found.until is not None and now >= found.until:
            when = datetime.fromtimestamp(found.until, UTC).isoformat()
            raise AccessError(f"the token expired at {when}; the hub's operator makes a new one with `sej hub token`")
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
                if str(error) != self._wrong:
                    _log.error("every caller is refused: %s", error)
                self._wrong = str(error)
                raise UnavailableError(
                    "the hub cannot read its list of tokens; its operator must correct the file"
                ) from error
            return self._grants

    def _load(self, status: os.stat_result) -> None:
        assert self._path is not None
        self._stamp, self._grants = None, []
        self._grants = _parse(self._path)
        self._wrong = ""
        self._stamp = _stamp(status)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _parse(path: Path) -> list[Grant]:
    grants = []
    for number, line in enumerate(path.read_text(errors="backslashreplace").splitlines(), 1):
        try:
            grant = parse_line(line)
        except ValueError as error:
            raise AccessError(
                f"{path}, line {number}: expected a SHA-256 in hex, a role, clients, and optionally a time with a"
                " zone; the roles are 'write' and 'append' (a client id), 'read' and 'reader' (patterns), 'view' and"
                " 'change' (a name); every caller is refused until this is corrected"
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
    if role in ("write", "append", "view", "change"):  # a person's name has the form of a client id
        try:
            check_client(clients)
        except SejError as error:
            raise ValueError(line) from error
    elif role not in ("read", "reader"):
        raise ValueError(line)
    return Grant(digest, cast("Role", role), tuple(clients.split(",")), until.timestamp() if until else None)
