"""What a connection needs: certificates, and a process that may use gRPC.

A server on any address except the loopback interface must use TLS, and so must a client that sends a token to one:
anyone on the network could read a token in plain text. ``allow_plaintext=True`` accepts that risk.

A child can be forked from a program that uses gRPC, but it cannot use gRPC itself. gRPC has support of forks of its
own. With it, version 1.85 ended up to half of the children by a signal, also those that only forked to run another
program, and the parent could wait without end for calls in other threads. So :mod:`hub.wire` turns it off, unless the
environment has a setting. Then forking is safe, but the child has gRPC's state without its threads: a call would hang,
or end the child.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import grpc

from hub.certificates import PEM, check_certificates, check_time, out_of_date, pem_of
from sej.checks import PATH, TEXT, optional, require
from sej.errors import ClosedError
from sej.fork import notice_fork, watch_forks
from sej.system.disk import OS
from sej.system.paths import absolute_path

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


class _Use:
    """Whether this process, or one that it was forked from, has used gRPC."""

    def __init__(self) -> None:
        """Nothing was used."""
        self._started = self._lost = False

    def start(self, what: str) -> None:
        """See :func:`use_grpc`."""
        notice_fork()
        if self._lost:
            raise ClosedError(
                f"{what} cannot be used in this process: it was forked from one that used gRPC, which does not work"
                ' after that; start it with the method "spawn" or "forkserver" of multiprocessing, or as a program'
            )
        if not self._started:
            self._started = True
            watch_forks(self)

    def _after_fork(self) -> None:
        self._lost = os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == "0"


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
    _use.start(what)
