"""Certificates for server and client, and which addresses need them.

A server on any address except the loopback interface must use TLS, and so must a client that sends a token to one:
anyone on the network could read a token in plain text. ``allow_plaintext=True`` accepts that risk.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import grpc

from hub.certificates import PEM, check_certificates, check_time, is_loopback, out_of_date, pem_of
from sej.checks import PATH, TEXT, optional, require
from sej.system.disk import OS
from sej.system.paths import absolute_path

__all__ = ["ClientTLS", "ServerTLS", "is_loopback"]

_PathLike = str | os.PathLike[str]


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

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
            SejError: the certificate has expired, or is not valid yet.
        """
        require(certificate=(self.certificate, PATH), key=(self.key, PATH), client_ca=(self.client_ca, optional(PATH)))
        check_certificates(self.client_ca, self.certificate, self.key)
        check_time(self.certificate)
        pair = (pem_of(self.key), pem_of(self.certificate))
        if self.client_ca is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials([pair], root_certificates=pem_of(self.client_ca), require_client_auth=True)


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
            given if given is None or (isinstance(given, str) and PEM in given) else absolute_path(given)
            for given in (self.ca, self.certificate, self.key)
        )
        return self._replace(ca=ca, certificate=certificate, key=key)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not PEM, or the key does not match the certificate.
        """
        optional(TEXT)("server_name", self.server_name)
        check_certificates(self.ca, self.certificate, self.key)
        ca, key, certificate = (
            None if given is None else pem_of(given) for given in (self.ca, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def stamp(self) -> object:
        """Return what changes if a file is renewed."""
        return [
            None if given is None or (isinstance(given, str) and PEM in given) else OS.status(given)
            for given in (self.ca, self.certificate, self.key)
        ]

    def out_of_date(self) -> str | None:
        """Return why the client's own certificate is not valid now, or None."""
        return None if self.certificate is None else out_of_date(self.certificate)
