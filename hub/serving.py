"""``sej hub serve``, and the options of the commands that connect to a hub, with the connection that they make."""

from __future__ import annotations

import errno
import functools
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from hub.certificates import absolute_address
from hub.store import MIN_FREE_BYTES, Store
from sej.cli.shared.parameters import PATH, SIZE, IntRange
from sej.system.process import keep_freed_memory, stop_on_signals, wait_for_signal

if TYPE_CHECKING:
    from hub.wire import Client, ClientTLS, ServerTLS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_BLOCK_BYTES: Final = 1 << 23
"""More than gRPC's largest buffer for a part of a job's rows, which is the most common large request."""
_KEPT_BYTES: Final = 1 << 25
_ARENAS: Final = 4
"""Python code runs in one thread at a time, so more arenas do not help, and each keeps memory."""


PLAINTEXT: Final = click.option("--plaintext", is_flag=True, help="Allow plain text beyond this machine, without TLS.")
_OPTIONS: Final = {
    "tls=ServerTLS(...)": "--certificate and --key",
    "tls=ClientTLS(...)": "--ca",
    "allow_plaintext=True": "--plaintext",
    "answer_bytes": "--answer-bytes",
}


def host_and_port(_: click.Context, __: click.Parameter, address: str) -> str:
    """Check an address of the command line."""
    try:
        return absolute_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def http_address(context: click.Context, parameter: click.Parameter, address: str | None) -> str | None:
    """Check an optional address of the command line."""
    return None if address is None else host_and_port(context, parameter, address)


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
    def run(
        address: str, token: str | None, tls: ClientTLS | None, plaintext: bool, compress: bool, **rest: Any
    ) -> None:
        def connect(client_id: str = "") -> Client:
            from hub.wire import Client

            with option_names():
                return Client(
                    address, client_id=client_id, token=token, tls=tls, allow_plaintext=plaintext, compress=compress
                )

        command(connect=connect, **rest)

    return run


def _limit(name: str, default: int, what: str) -> Callable[[_Command], _Command]:
    """Add an option for a number that is at least 1."""
    return click.option(name, type=IntRange(min=1), default=default, show_default=True, help=what)


@click.command
@click.argument("root", metavar="ROOT", type=PATH)
@click.option(
    "--address", default="127.0.0.1:7890", show_default=True, callback=host_and_port, help="The address to listen on."
)
@click.option("--http", metavar="ADDRESS", callback=http_address, help="Serve HTTP with JSON on this address, too.")
@click.option("--certificate", type=PATH, help="The server's certificate, PEM.")
@click.option("--key", type=PATH, help="Its private key, PEM.")
@click.option("--client-ca", type=PATH, help="Mutual TLS: the authority that signs client certificates.")
@click.option("--tokens", type=PATH, help="The file of tokens; without it every client is accepted.")
@PLAINTEXT
@_limit("--max-open", 256, "How many writers may be open at the same time.")
@click.option("--min-free", type=SIZE, default=MIN_FREE_BYTES, help="Bytes that must stay free on the disk, as in 1G.")
@_limit("--max-streams", 256, "How many reads (Spark tasks) are served at the same time; further ones wait.")
@_limit(
    "--max-followers", 256, "How many readers may follow journals at the same time; further ones are refused for now."
)
@_limit(
    "--max-copiers", 256, "How many copiers (sej hub push) may send at the same time; further ones are refused for now."
)
@_limit("--put-threads", 32, "How many puts are served at the same time; further ones wait.")
@click.option(
    "--answer-bytes",
    type=SIZE,
    default=1 << 28,
    help="Memory for all answers to readers together, as in 256M (the default).",
)
@click.option("--client-bytes", type=SIZE, help="How many bytes each client may store, as in 50G.")
@click.option(
    "--metrics",
    type=IntRange(0, (1 << 16) - 1),
    help="Serve Prometheus metrics on this port of the loopback interface.",
)
@click.option(
    "--page",
    type=IntRange(0, (1 << 16) - 1),
    help="Serve a web page on this port of the loopback interface; see `sej ui`.",
)
@click.option("--allow-changes", is_flag=True, help="Let the web page offer changes; without it, it only shows.")
def serve(
    root: Path,
    address: str,
    http: str | None,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    tokens: Path | None,
    plaintext: bool,
    max_open: int,
    min_free: int,
    max_streams: int,
    max_followers: int,
    max_copiers: int,
    put_threads: int,
    answer_bytes: int,
    client_bytes: int | None,
    metrics: int | None,
    page: int | None,
    allow_changes: bool,
) -> None:
    """Serve a root until SIGTERM or an interrupt; acknowledged messages are on the disk.

    Example: sej hub serve --certificate hub.pem --key hub.key --tokens tokens --address 0.0.0.0:7890 /srv/hub
    """
    tls = _certificates(certificate, key, client_ca)
    if root.is_dir() and not os.access(root, os.W_OK | os.X_OK):  # else each client would be refused later
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
    if allow_changes and page is None:
        raise click.UsageError("--allow-changes needs --page")
    stop = stop_on_signals()
    with ExitStack() as stack:
        stack.enter_context(option_names())
        from hub.wire import Server

        keep_freed_memory(_BLOCK_BYTES, _KEPT_BYTES, _ARENAS)
        store = stack.enter_context(Store(root, max_open, max_client_bytes=client_bytes, min_free_bytes=min_free))
        server = stack.enter_context(
            Server(
                store,
                address,
                tls=tls,
                tokens=tokens,
                allow_plaintext=plaintext,
                max_streams=max_streams,
                max_followers=max_followers,
                max_copiers=max_copiers,
                threads=put_threads,
                answer_bytes=answer_bytes,
            )
        )
        if http is not None:
            from hub.http import HttpServer

            over = stack.enter_context(HttpServer(server, http, tls=tls, allow_plaintext=plaintext))
            click.echo(f"HTTP on {over.url}", err=True)
        if metrics is not None:
            from hub.wire.metrics import serve_metrics

            click.echo(f"metrics on 127.0.0.1:{serve_metrics(server, metrics)}", err=True)
        if page is not None:
            from hub.page.serving import PageServer

            shown = PageServer([store.root], port=page, tokens=tokens, allow_changes=allow_changes, hub=server)
            click.echo(f"the page is at {stack.enter_context(shown).url}", err=True)
        click.echo(f"serving {root} on {server.address}")
        wait_for_signal(stop)


def _certificates(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTLS | None:
    from hub.wire import ServerTLS

    require_pair(certificate, key)
    if certificate is not None and key is not None:
        return ServerTLS(certificate, key, client_ca)
    if client_ca is not None:
        raise click.UsageError("--client-ca needs --certificate and --key")
    return None
