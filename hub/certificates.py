"""Which addresses need TLS, and the checks of its PEM files; shared by the hub's gRPC server and the web page."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tempfile
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from sej.checks import PATH, optional, require
from sej.errors import SejError
from sej.system.paths import absolute_path

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


def pem_of(source: _PathLike) -> bytes:
    """Return the PEM text of a file, or the text itself if ``source`` is PEM text instead of a path.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(source, str) and PEM in source:
        return source.encode()
    return Path(source).read_bytes()


def _name_of(source: _PathLike) -> str:
    return "the PEM text" if isinstance(source, str) and PEM in source else os.fspath(source)


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


def out_of_date(certificate: _PathLike) -> str | None:
    """Return why a certificate, the first of its chain, is not valid now; None if it is.

    Raises:
        OSError: the file cannot be read.
    """
    first = _FIRST.search(pem_of(certificate))
    validity = first and _VALIDITY.search(b64decode(first[1]))
    if not validity:
        return None
    begin, end = (
        datetime.strptime(time[2:].decode(), "%y%m%d%H%M%S" if len(time) == 14 else "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        for time in validity.groups()
    )
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
    wrong = None if certificate is None else out_of_date(certificate)
    if wrong is not None:
        raise SejError(f"{wrong}, then start again")


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
