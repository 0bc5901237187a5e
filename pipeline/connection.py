"""How to reach a hub: addresses, certificates and the token; a connection that is made again if it is lost.

Several addresses lead to the same hub. Each process has its own connection, made after the fork.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zlib import crc32

from hub.certificates import absolute_address, is_loopback
from hub.errors import UnavailableError
from pipeline.options import OptionError, Options
from sej.checks import TEXT, backoff, instance_of, optional, require
from sej.cli.shared.text import human_duration

if TYPE_CHECKING:
    from hub.readers import Kept
    from hub.wire import Client, ClientTLS


_T = TypeVar("_T")

RETRY_S: Final = 600.0
"""How long a hub may be out of reach for a stream, and the default of Spark's option."""
ANSWER_S: Final = 20.0
"""How long for a call that a person waits for, such as a table: a restart of the hub takes less."""
_FIRST_S: Final = 0.1
_MOST_S: Final = 10.0
_REPORT_S: Final = 10.0
_NAMES: Final = ("hubToken", "hubCa", "hubCertificate", "hubKey", "hubServerName", "hubTls", "hubRetryFor")
"""The options, in the order of the fields of :class:`Remote` after the addresses."""
_log = logging.getLogger("pipeline")


class Retry:
    """The attempts of one task or connection.

    Attributes:
        attempts: failed attempts since the hub was last reached.
    """

    def __init__(
        self,
        for_s: float,
        setting: str = "",
    ) -> None:
        """Start before the first attempt.

        Args:
            for_s: how long the hub may be out of reach, in seconds.
            setting: the option that sets this, for messages; empty: none does.
        """
        self.attempts = 0
        self._for_s = for_s
        self._named = f" ({setting})" if setting else ""
        self._since: float | None = None
        """When the hub was found out of reach: at the latest at the start of the first failed attempt."""
        self._reported_at = float("-inf")

    def trying(self) -> None:
        """An attempt begins, which may itself take long."""
        if self._since is None:
            self._since = time.monotonic()

    def reached(self) -> None:
        """The hub has answered: the next failure starts from the beginning."""
        if self.attempts and self._since is not None:
            _log.warning("the hub answers again after %s", human_duration(time.monotonic() - self._since))
        self.attempts = 0
        self._since = None

    def wait(self, error: UnavailableError) -> None:
        """Wait before the next attempt.

        Raises:
            UnavailableError: the given error, if it cannot heal, or if the time is used up.
        """
        from hub.wire.status import HandshakeError

        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not self.attempts:
            self._reported_at = float("-inf")
        left = self._since + self._for_s - now
        if left <= 0 or isinstance(error, HandshakeError):
            if self.attempts:
                error.add_note(f"{self.attempts + 1} attempts in {human_duration(now - self._since)}{self._named}")
            raise error
        self.attempts += 1
        pause = backoff(self.attempts, _FIRST_S, _MOST_S)
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            _log.warning(
                "%s; attempt %d failed, trying again for %s%s",
                error,
                self.attempts,
                human_duration(left),
                self._named,
            )
        time.sleep(min(pause, left))


class Remote(NamedTuple):
    """How to reach a hub; sent to the tasks.

    Attributes:
        addresses: ``host:port`` each.
        token: sent with every call.
        ca: a PEM file: the authority that signed the hub's certificate; None: the usual ones.
        certificate: a PEM file, for mutual TLS.
        key: a PEM file, for mutual TLS.
        server_name: the name in the hub's certificate, if it is not the address.
        tls: whether TLS is used; None: if one of the four above is set.
        retry_s: how long the hub may be out of reach, in seconds.
        retry_setting: the option that sets this, for messages; empty: none does.
    """

    addresses: tuple[str, ...]
    token: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    tls: bool | None = None
    retry_s: float = ANSWER_S
    retry_setting: str = ""

    @classmethod
    def of(cls, options: Options) -> Remote | None:
        """Return the hub of the options; None if no hub is set.

        Raises:
            OptionError: layout is set, which applies to a path; or an address has no port.
        """
        if not options["hub"]:
            return None
        if options.get("layout") is not None:
            raise OptionError("the option layout is for a path; with the option hub, leave it out")
        return cls(_checked(options["hub"]), *(options[name] for name in _NAMES))._replace(retry_setting=_NAMES[-1])

    @classmethod
    def named(cls, hub: str | Sequence[str] | None, token: str | None, tls: ClientTLS | None) -> Remote | None:
        """Return the hub of a function's arguments; None if no hub is passed.

        Raises:
            OptionError: an address is empty or has no port, or token or tls is passed without a hub, or the token would
                cross a network in plain text.
        """
        require(token=token, hub=(hub, optional(instance_of(str, list, tuple))))
        if not hub:
            if hub is not None:
                raise OptionError(f"hub must be an address host:port, or several, got {hub!r}")
            if token is not None or tls is not None:
                raise OptionError("token and tls are for a hub: pass its address as hub")
            return None
        addresses = tuple(each.strip() for each in hub.split(",")) if isinstance(hub, str) else tuple(hub)
        for address in addresses:
            TEXT("hub", address)
        addresses = _checked(addresses)
        if tls is None:
            found = cls(addresses, token)
            found.require_private("pass tls=ClientTLS(...)")
            return found
        ca, certificate, key = (
            None if path is None else os.fspath(path) for path in (tls.ca, tls.certificate, tls.key)
        )
        return cls(addresses, token, ca, certificate, key, tls.server_name, tls=True)

    @property
    def _uses_tls(self) -> bool:
        return bool(self.ca or self.certificate or self.server_name) if self.tls is None else self.tls

    def require_private(self, way_out: str) -> None:
        """Check that the token does not cross a network in plain text; the error names the way out.

        Raises:
            OptionError: it would.
        """
        if self.token and not self._uses_tls:
            for address in self.addresses:
                if not is_loopback(address):
                    raise OptionError(
                        f"the token for {address} would cross the network in plain text; {way_out}, if the hub has TLS"
                    )

    def options(self) -> dict[str, str]:
        """Return the same as options of Spark's source."""
        found: dict[str, Any] = dict(
            zip(_NAMES, self[1:], strict=False), hub=",".join(self.addresses), hubRetryFor=str(self.retry_s)
        )
        found["hubTls"] = None if self.tls is None else str(self.tls).lower()
        return {name: value for name, value in found.items() if value is not None}

    def retry(self) -> Retry:
        """Return the attempts of one task or connection."""
        return Retry(self.retry_s, self.retry_setting)

    def client(self, name: str = "", turn: int = 0, client_id: str = "") -> Client:
        """Open a connection for one journal, or to write as a client; the next turn uses the next address."""
        from hub.wire import Client, ClientTLS

        self.require_private("set the option hubCa, or hubTls to true")
        tls = ClientTLS(self.ca, self.certificate, self.key, self.server_name) if self._uses_tls else None
        at = (crc32(name.encode()) + turn) % len(self.addresses)
        return Client(self.addresses[at], client_id=client_id, token=self.token, tls=tls)


def _checked(addresses: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(absolute_address, addresses))
    except ValueError as error:
        raise OptionError(str(error)) from None


class Line:
    """A connection for short calls, kept between them; uses the next address if a hub cannot be reached."""

    def __init__(self, remote: Remote, client_id: str = "") -> None:
        """Create it without connecting; the client id is needed to write."""
        self._remote = remote
        self._client_id = client_id
        self._client: Client | None = None
        self._turn = 0
        self._retry = remote.retry()

    def ask(self, question: Callable[[Client], _T]) -> _T:
        """Make one call; try again if the hub cannot be reached.

        Raises:
            UnavailableError: it was out of reach for longer than ``retry_s``.
        """
        while True:
            try:
                self._retry.trying()
                self._client = self._client or self._remote.client(turn=self._turn, client_id=self._client_id)
                answer = question(self._client)
            except UnavailableError as error:
                self.close()
                self._turn += 1
                self._retry.wait(error)
            else:
                self._retry.reached()
                return answer

    def hold(self, request: Any) -> list[Kept]:
        """Take a named reader, or renew its lease."""
        return self.ask(lambda client: client.hold(request))

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __str__(self) -> str:
        """Show the addresses."""
        return ", ".join(self._remote.addresses)

    def __enter__(self) -> Line:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.close()
