"""Certificates for server and client, and which addresses need them.

A server on any address except the loopback interface must use TLS, and so must a client that sends a token to one:
anyone on the network could read a token in plain text. ``allow_plaintext=True`` accepts that risk.
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
    """The server's certificate and the authority it trusts; PEM files, read when the server starts.

    Attributes:
        certificate: its chain.
        key: its private key.
        client_ca: mutual TLS: clients must send a certificate signed by one of these; its common name is the client id.
    """

    certificate: _PathLike
    key: _PathLike
    client_ca: _PathLike | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
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
    """The authority that the client trusts, and its own certificate; PEM files.

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

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
        """
        optional(TEXT)("server_name", self.server_name)
        _check(self.ca, self.certificate, self.key)
        ca, key, certificate = (
            None if path is None else Path(path).read_bytes() for path in (self.ca, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def _check(ca: _PathLike | None, certificate: _PathLike | None, key: _PathLike | None) -> None:
    """Check the files, because gRPC would report errors late or crash."""
    require(ca=(ca, optional(PATH)), certificate=(certificate, optional(PATH)), key=(key, optional(PATH)))
    if (certificate is None) != (key is None):
        raise ValueError("a certificate needs its private key, and a key its certificate; pass both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # gRPC decides which key sizes are accepted
    if ca is not None:
        try:
            context.load_verify_locations(cadata=Path(ca).read_text("ascii", "ignore") or "nothing")
        except ssl.SSLError as error:
            raise ValueError(f"{os.fspath(ca)}: expected certificates in PEM ({error.reason or error})") from error
    if certificate is not None and key is not None:
        for path in (certificate, key):
            Path(path).read_bytes()  # raises FileNotFoundError with the path
        try:
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            raise ValueError(
                f"{os.fspath(certificate)} and {os.fspath(key)}: expected a certificate and its own private key, in"
                f" PEM and without a password ({error.reason or error})"
            ) from error


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
