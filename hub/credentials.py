"""The options of commands that connect to a hub, with the connection that they make; importing it costs little."""

from __future__ import annotations

import functools
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sej.cli.shared.command import PATH

if TYPE_CHECKING:
    from hub.wire import Client, ClientTLS


PLAINTEXT: Final = click.option("--plaintext", is_flag=True, help="Allow plain text beyond this machine, without TLS.")
_OPTIONS: Final = {
    "tls=ServerTLS(...)": "--certificate and --key",
    "tls=ClientTLS(...)": "--ca",
    "allow_plaintext=True": "--plaintext",
    "answer_bytes": "--answer-bytes",
}


def host_and_port(_: click.Context, __: click.Parameter, address: str | None) -> str | None:
    """Check an address of the command line."""
    from hub.certificates import absolute_address

    try:
        return None if address is None else absolute_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def token_in(path: Path | None) -> str | None:
    """Return the token that a file holds; None without a file.

    As for ssh's keys, only a file that belongs to this user is checked: systemd and containers give files of root.

    Raises:
        ValueError: the file holds none, or other users may read it.
    """
    if path is None:
        return None
    token = path.read_bytes().decode(errors="replace").strip()
    if not token:
        raise ValueError(f"{path}: this file holds no token; put the first line that `sej hub token` prints into it")
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077 and stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path}: other users may read this token (mode {stat.S_IMODE(status.st_mode):o}); run `chmod 600"
            f" {shlex.quote(str(path))}`"
        )
    return token


def require_pair(certificate: Path | None, key: Path | None) -> None:
    """Check that both files of a certificate are given, or none."""
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key need each other")


@contextmanager
def option_names() -> Iterator[None]:
    """Name the options instead of the arguments in the library's errors."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for argument, option in _OPTIONS.items():
            text = text.replace(argument, option)
        raise click.UsageError(text) from None


def credentials(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a token and of TLS; it gets ``token`` and ``tls`` of what they name."""

    @click.option("--token-file", type=PATH, help="A file that holds the token for the hub.")
    @click.option("--ca", type=PATH, help="TLS: the authority that signed the hub's certificate.")
    @click.option("--certificate", type=PATH, help="Mutual TLS: this client's certificate.")
    @click.option("--key", type=PATH, help="Mutual TLS: the certificate's private key.")
    @click.option("--server-name", help="The name in the hub's certificate, if it is not the address.")
    @functools.wraps(command)
    def run(
        token_file: Path | None,
        ca: Path | None,
        certificate: Path | None,
        key: Path | None,
        server_name: str | None,
        **rest: Any,
    ) -> None:
        require_pair(certificate, key)
        tls: ClientTLS | None = None
        if ca is not None or certificate is not None or server_name is not None:
            from hub.wire import ClientTLS

            tls = ClientTLS(ca, certificate, key, server_name)
        command(token=token_in(token_file), tls=tls, **rest)

    return run


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ADDRESS and the options of a connection; it gets ``connect``, which takes the client id."""

    @click.argument("address", metavar="ADDRESS", callback=host_and_port)
    @credentials
    @PLAINTEXT
    @click.option("--compress", is_flag=True, help="Compress messages with gzip on the connection, for a slow line.")
    @functools.wraps(command)
    def run(address: str, plaintext: bool, **rest: Any) -> None:
        options = {name: rest.pop(name) for name in ("token", "tls", "compress")}

        def connect(client_id: str = "") -> Client:
            from hub.wire import Client

            with option_names():
                return Client(address, client_id=client_id, allow_plaintext=plaintext, **options)

        command(connect=connect, **rest)

    return run
