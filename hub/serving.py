"""``sej hub serve``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from hub.credentials import PLAINTEXT, host_and_port, option_names, require_pair
from hub.store import MIN_FREE_BYTES, Store
from sej.cli.shared.command import PATH, SIZE, IntRange
from sej.system.process import keep_freed_memory, stop_on_signals, wait_for_signal

if TYPE_CHECKING:
    from hub.wire import ServerTLS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_BLOCK_BYTES: Final = 1 << 23
"""More than gRPC's largest buffer for a part of a job's rows, which is the most common large request."""
_KEPT_BYTES: Final = 1 << 25
_ARENAS: Final = 4
"""Python code runs in one thread at a time, so more arenas do not help, and each keeps memory."""


def _limit(name: str, default: int, what: str, *argument: str) -> Callable[[_Command], _Command]:
    """Add an option for a number that is at least 1; the argument is named like the option, or as given."""
    return click.option(name, *argument, type=IntRange(min=1), default=default, show_default=True, help=what)


@click.command
@click.argument("root", metavar="ROOT", type=PATH)
@click.option(
    "--address", default="127.0.0.1:7890", show_default=True, callback=host_and_port, help="The address to listen on."
)
@click.option("--http", metavar="ADDRESS", callback=host_and_port, help="Serve HTTP with JSON on this address, too.")
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
@_limit("--put-threads", 32, "How many puts are served at the same time; further ones wait.", "threads")
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
    client_bytes: int | None,
    metrics: int | None,
    page: int | None,
    allow_changes: bool,
    **limits: int,
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
            Server(store, address, tls=tls, tokens=tokens, allow_plaintext=plaintext, **limits)
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
