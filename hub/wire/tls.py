"""Certificates for either side, and which addresses need them.

A server on any address but the loopback must have TLS, and so must a client that shows a token to one: a token that
crosses a network in the clear belongs to whoever listens. ``allow_plaintext=True`` takes that risk by name.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from sej.checks import PATH, TEXT, optional, require

__all__ = ["ClientTLS", "ServerTLS", "is_loopback"]

_PathLike = str | os.PathLike[str]


class ServerTLS(NamedTuple):
    """What the server shows, and whom it believes; PEM files, read when the server starts.

    Attributes:
        certificate: its chain.
        key: its private key.
        client_ca: mutual TLS: clients must show a certificate signed by one of these; its common name is the client id.
    """

    certificate: _PathLike
    key: _PathLike
    client_ca: _PathLike | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """As gRPC wants them.

        Raises:
            OSError: a file cannot be read.
            ValueError: it holds something else, or the key is not the certificate's.
        """
        require(certificate=(self.certificate, PATH), key=(self.key, PATH), client_ca=(self.client_ca, optional(PATH)))
        _check(self.client_ca, self.certificate, self.key)
        pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
        if self.client_ca is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials(
            [pair], root_certificates=Path(self.client_ca).read_bytes(), require_client_auth=True
        )


class ClientTLS(NamedTuple):
    """Whom the client believes, and what it shows; PEM files.

    Attributes:
        ca: who signed the server's certificate; None: the authorities that gRPC brings along.
        certificate: its own chain, for mutual TLS.
        key: its own private key, for mutual TLS.
        server_name: the name in the server's certificate, where it is not the address.
    """

    ca: _PathLike | None = None
    certificate: _PathLike | None = None
    key: _PathLike | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC wants them.

        Raises:
            OSError: a file cannot be read.
            ValueError: it holds something else, or the key is not the certificate's.
        """
        optional(TEXT)("server_name", self.server_name)
        _check(self.ca, self.certificate, self.key)
        ca, key, certificate = (
            None if path is None else Path(path).read_bytes() for path in (self.ca, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def _check(ca: _PathLike | None, certificate: _PathLike | None, key: _PathLike | None) -> None:
    """Make sure of files that gRPC would stumble over later, in its own words, or fall over at once."""
    require(ca=(ca, optional(PATH)), certificate=(certificate, optional(PATH)), key=(key, optional(PATH)))
    if (certificate is None) != (key is None):
        raise ValueError("a certificate and its private key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # how small a key may be is for gRPC to say
    if ca is not None:
        try:
            context.load_verify_locations(cadata=Path(ca).read_text("ascii", "ignore") or "nothing")
        except ssl.SSLError as error:
            raise ValueError(f"{os.fspath(ca)}: certificates in PEM are due ({error.reason or error})") from error
    if certificate is not None and key is not None:
        for path in (certificate, key):
            Path(path).read_bytes()  # says which one is missing
        try:
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            raise ValueError(
                f"{os.fspath(certificate)} and {os.fspath(key)}: a certificate and its own private key are due, PEM,"
                f" without a password ({error.reason or error})"
            ) from error


def is_loopback(address: str) -> bool:
    """Whether an address (``host:port``, ``[v6]:port``, ``unix:path``) can be reached from this machine only."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
