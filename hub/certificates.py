"""What a connection needs: an address, certificates, and a process that may use gRPC. Imports no gRPC by itself.

A server on any address except the loopback interface must use TLS, and so must a client that sends a token to one:
anyone on the network could read a token in plain text. ``allow_plaintext=True`` accepts that risk.

A child can be forked from a program that uses gRPC, but it cannot use gRPC itself. gRPC has support of forks of its
own. With it, version 1.85 ended up to half of the children by a signal, also those that only forked to run another
program, and the parent could wait without end for calls in other threads. So :mod:`hub.wire` turns it off, unless the
environment has a setting. Then forking is safe, but the child has gRPC's state without its threads: a call would hang,
or end the child.
"""

from __future__ import annotations

import ipaddress
import os
import re
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from sej.checks import PATH, TEXT, optional, require
from sej.errors import ClosedError, SejError
from sej.fork import notice_fork, watch_forks
from sej.system.disk import OS, absolute_path

_LAST_PORT: Final = 65535
_HOST_PORT: Final = re.compile(r"(?:(?:dns|ipv4|ipv6):/*)?(?:\[[^][]+\]|[^][:/\s]+):([0-9]{1,5})")
_SOCKET_BYTES: Final = 107
"""The longest path of a Unix socket on Linux."""
PEM: Final = "-----BEGIN "
_FIRST: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END", re.DOTALL)
_TIME: Final = rb"(\x17\x0d\d{12}|\x18\x0f\d{14})Z"
_VALIDITY: Final = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)
"""The times of a certificate in DER, as RFC 5280 requires them: UTCTime or GeneralizedTime, in UTC, with seconds."""
_PathLike = str | os.PathLike[str]


def is_text(source: _PathLike | None) -> bool:
    """Return whether this is PEM text instead of a path."""
    return isinstance(source, str) and PEM in source


def pem_of(source: _PathLike) -> bytes:
    """Return the PEM text of a file, or the text itself if ``source`` is PEM text instead of a path.

    Raises:
        OSError: the file cannot be read.
    """
    if is_text(source):
        return str(source).encode()
    try:
        return Path(source).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "this file does not exist; expected a PEM file", source) from error


def _name_of(source: _PathLike) -> str:
    return "the PEM text" if is_text(source) else os.fspath(source)


def check_certificates(ca: _PathLike | None, certificate: _PathLike | None, key: _PathLike | None) -> None:
    """Check PEM files, or PEM text, before a library reads them, because gRPC would report errors late or crash.

    Args:
        ca: certificates of authorities, or None.
        certificate: a chain, or None.
        key: its private key, or None.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not PEM, or the key does not match the certificate.
    """
    require(ca=(ca, optional(PATH)), certificate=(certificate, optional(PATH)), key=(key, optional(PATH)))
    if (certificate is None) != (key is None):
        raise ValueError("a certificate needs its private key, and a key its certificate; pass both")
    import ssl  # with tempfile a twentieth of the time of a short command that only imports this module
    import tempfile

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # gRPC decides which key sizes are accepted
    if ca is not None:
        try:
            context.load_verify_locations(cadata=pem_of(ca).decode("ascii", "ignore") or "nothing")
        except ssl.SSLError as error:
            raise ValueError(f"{_name_of(ca)}: expected certificates in PEM ({error.reason or error})") from error
    if certificate is not None and key is not None:
        # OpenSSL reads these from files only; mode 0600.
        with tempfile.NamedTemporaryFile() as chain, tempfile.NamedTemporaryFile() as private:
            for file, source in ((chain, certificate), (private, key)):
                file.write(pem_of(source))
                file.flush()
            try:
                context.load_cert_chain(chain.name, private.name, password="")
            except ssl.SSLError as error:
                raise ValueError(
                    f"{_name_of(certificate)} and {_name_of(key)}: expected a certificate and its own private key, in"
                    f" PEM and without a password ({error.reason or error})"
                ) from error


def validity_of(certificate: _PathLike | None) -> list[datetime]:
    """Return when a certificate, the first of its chain, begins and ends to be valid; nothing if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    first = certificate is not None and _FIRST.search(pem_of(certificate))
    validity = first and _VALIDITY.search(b64decode(first[1]))
    return [
        datetime.strptime(time[2:].decode(), "%y%m%d%H%M%S" if len(time) == 14 else "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        for time in (validity.groups() if validity else ())
    ]


def out_of_date(certificate: _PathLike | None) -> str | None:
    """Return why a certificate, the first of its chain, is not valid now; None if it is, or if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    if certificate is None or not (times := validity_of(certificate)):
        return None
    begin, end = times
    if datetime.now(UTC) < begin:
        return f"{_name_of(certificate)}: this certificate is valid from {begin:%Y-%m-%dT%H:%M:%SZ} on; check the clock"
    if datetime.now(UTC) >= end:
        return f"{_name_of(certificate)}: this certificate expired at {end:%Y-%m-%dT%H:%M:%SZ}; renew the file"
    return None


def check_time(certificate: _PathLike | None) -> None:
    """Check that a server's certificate is valid now: every client would refuse it.

    Raises:
        SejError: it has expired, or is not valid yet.
        OSError: the file cannot be read.
    """
    if wrong := out_of_date(certificate):
        raise SejError(f"{wrong}, then start again")


def require_private(address: str, tls: ServerTLS | None, *, allow_plaintext: bool) -> None:
    """Check that a server listens on this machine only, or uses TLS, or may use plain text.

    Raises:
        ValueError: it does not.
    """
    if tls is None and not allow_plaintext and not is_loopback(address):
        raise ValueError(
            f"{address} can be reached from other machines, where tokens and messages would cross the network in plain"
            " text; pass tls=ServerTLS(...) or allow_plaintext=True"
        )


def is_loopback(address: str) -> bool:
    """Return whether an address (``host:port``, ``[v6]:port``, ``unix:path``) is reachable from this machine only."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def absolute_address(address: str) -> str:
    """Check an address of a hub, and return it; a relative path of a Unix socket means the current directory.

    Without a port, gRPC would try port 443. It uses the lowest 16 bits of a port, so another program would get the
    calls.

    gRPC connects later, and again after an outage. It decodes the path as that of a URI. If the absolute path would be
    longer than the system allows, the address stays relative.

    Raises:
        ValueError: this is not ``host:port`` or ``unix:path``.
    """
    scheme, colon, path = address.partition(":")
    found = _HOST_PORT.fullmatch(address)
    if not (path if scheme in ("unix", "unix-abstract") else found and int(found[1]) <= _LAST_PORT):
        raise ValueError(
            f"{address!r} is not the address of a hub; expected host:port with a port of 0 to {_LAST_PORT}, as in"
            " 127.0.0.1:7890, or unix:path"
        )
    if scheme != "unix" or not path or path.startswith("/"):
        return address
    folder = absolute_path(".")
    if len(os.fsencode(os.path.join(folder, unquote(path)))) > _SOCKET_BYTES:
        return address
    return f"{scheme}{colon}{quote(os.fsencode(folder)).rstrip('/')}/{path}"


class ServerTLS(NamedTuple):
    """The server's certificate and the authority it trusts: PEM text, or files that are read at the start.

    Attributes:
        certificate: its chain.
        key: its private key.
        client_ca: mutual TLS: clients must send a certificate signed by one of these; its common name is the client id.
    """

    certificate: _PathLike
    key: _PathLike
    client_ca: _PathLike | None = None

    def pem(self) -> tuple[bytes, bytes, bytes | None]:
        """Return key, certificate and authority as PEM text, checked.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
            SejError: the certificate has expired, or is not valid yet.
        """
        require(client_ca=self.client_ca, certificate=(self.certificate, PATH), key=(self.key, PATH))
        check_certificates(self.client_ca, self.certificate, self.key)
        check_time(self.certificate)
        ca = None if self.client_ca is None else pem_of(self.client_ca)
        return pem_of(self.key), pem_of(self.certificate), ca


class ClientTLS(NamedTuple):
    """The authority that the client trusts, and its own certificate; PEM files, or PEM text.

    A client reads files that were renewed after its connection has failed.

    Attributes:
        ca: the authority that signed the server's certificate; None: those that gRPC includes.
        certificate: its own chain, for mutual TLS.
        key: its own private key, for mutual TLS.
        server_name: the name in the server's certificate, if it is not the address.
    """

    ca: _PathLike | None = None
    certificate: _PathLike | None = None
    key: _PathLike | None = None
    server_name: str | None = None

    def absolute(self) -> ClientTLS:
        """Return the same files by absolute paths. A relative one means the current directory of this call."""
        ca, certificate, key = (
            given if given is None or is_text(given) else absolute_path(given)
            for given in (self.ca, self.certificate, self.key)
        )
        return self._replace(ca=ca, certificate=certificate, key=key)

    def pem(self) -> list[bytes | None]:
        """Return authority, key and certificate as PEM text, checked.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
        """
        optional(TEXT)("server_name", self.server_name)
        check_certificates(self.ca, self.certificate, self.key)
        return [None if given is None else pem_of(given) for given in (self.ca, self.key, self.certificate)]

    def stamp(self) -> object:
        """Return what changes if a file is renewed."""
        return [
            None if given is None or is_text(given) else OS.status(given)
            for given in (self.ca, self.certificate, self.key)
        ]


class _Use:
    """Whether this process, or one that it was forked from, has used gRPC."""

    started = lost = False

    def _after_fork(self) -> None:
        self.lost = os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == "0"


_use: Final = _Use()
_kept: Final[list[object]] = []


def keep_unused(inherited: object) -> None:
    """Keep what a forked child got from its parent: gRPC would wait for its threads when it is freed."""
    _kept.append(inherited)


def use_grpc(what: str) -> None:
    """Check that gRPC works in this process, before a channel or a server is made, or used.

    Args:
        what: what needs it, for the error: ``"the client of 10.0.0.1:7000"``.

    Raises:
        ClosedError: the process was forked from one that had used gRPC.
    """
    notice_fork()
    if _use.lost:
        raise ClosedError(
            f"{what} cannot be used here: this process was forked from one that used gRPC, and gRPC does not work after"
            ' a fork; start the process with the method "spawn" or "forkserver" of multiprocessing'
        )
    if not _use.started:
        _use.started = True
        watch_forks(_use)
