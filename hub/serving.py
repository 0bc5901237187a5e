"""``sej hub serve``: one process, or several that a supervisor starts, behind one address.

With several, this process only supervises (:mod:`sej.cli.shared.supervising`), and serves the metrics and the web page
of all. It reserves the port: it binds it, and does not listen. So another hub on this port is refused, and a port 0 is
chosen once. The processes listen there too, and the kernel divides the connections among them
(:mod:`hub.wire.processes`).
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from hub import process_folder
from hub.connecting import PLAINTEXT, host_and_port, option_names
from hub.naming import make_root
from hub.serving_lock import serving
from hub.store import MIN_FREE_BYTES, Store
from sej.cli.shared.options import SIZE
from sej.cli.shared.parameters import PATH, IntRange
from sej.cli.shared.supervising import MAX_PROCESSES, Supervised, Supervisor, supervised
from sej.system.memory import keep_freed_memory
from sej.system.signals import stop_on_signals, wait_for_signal

if TYPE_CHECKING:
    from hub.page.views import HubCounts
    from hub.wire import ServerTLS
    from hub.wire.counts import Counted
    from hub.wire.processes import Processes

__all__ = ["serve"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_log: Final = getLogger(__name__)
_BLOCK_BYTES: Final = 1 << 23
"""More than gRPC's largest buffer for a part of a job's rows, which is the most common large request."""
_KEPT_BYTES: Final = 1 << 25
_ARENAS: Final = 4
"""Python code runs in one thread at a time, so more arenas do not help, and each keeps memory."""
_NO_ADDRESS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_SOCKET_BYTES: Final = 100
"""The longest path of a Unix socket, with some to spare."""
# A name, so that the type checker reads both ways.


def _limit(name: str, default: int, what: str) -> Callable[[_Command], _Command]:
    """Add an option for a number that is at least 1."""
    return click.option(name, type=IntRange(min=1), default=default, show_default=True, help=what)


@click.command
@click.argument("root", metavar="ROOT", type=PATH)
@click.option(
    "--address", default="127.0.0.1:7890", show_default=True, callback=host_and_port, help="The address to listen on."
)
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
@click.option(
    "--processes",
    type=IntRange(0, MAX_PROCESSES),
    default=1,
    show_default=True,
    help="Processes that serve the root together, on one address; 0: one for each core.",
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
    processes: int,
    client_bytes: int | None,
    metrics: int | None,
    page: int | None,
    allow_changes: bool,
) -> None:
    """Serve a root until SIGTERM or an interrupt; acknowledged messages are on the disk.

    With --processes, each process has its own --max-open, --max-streams, --max-followers, --max-copiers and
    --put-threads, and they divide --answer-bytes.

    Example: sej hub serve --certificate hub.pem --key hub.key --tokens tokens --address 0.0.0.0:7890 /srv/hub
    """
    tls = _certificates(certificate, key, client_ca)
    if root.is_dir() and not os.access(root, os.W_OK | os.X_OK):  # else each client would be refused later
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
    if allow_changes and page is None:
        raise click.UsageError("--allow-changes needs --page")
    stop = stop_on_signals()
    told = supervised()
    count = processes or _cores() if told is None else told.given["count"]
    show = partial(_shown, metrics=metrics, page=page, tokens=tokens, allow_changes=allow_changes)
    with ExitStack() as stack:
        stack.enter_context(option_names())
        if told is None and count > 1:
            if code := _supervise(root, address, count, show, stop):
                raise SystemExit(code)
            return
        from hub.wire import Server

        keep_freed_memory(_BLOCK_BYTES, _KEPT_BYTES, _ARENAS)
        others = None
        if told is not None:
            others, address = stack.enter_context(_others(told)), told.given["address"]
        store = stack.enter_context(
            Store(root, max_open, max_client_bytes=client_bytes, min_free_bytes=min_free, siblings=others)
        )
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
                answer_bytes=answer_bytes // count,
                processes=others,
            )
        )
        if told is None:
            stack.enter_context(show(server))
            click.echo(f"serving {root} on {server.address}")
        else:
            told.ready()
        wait_for_signal(stop)


def _supervise(
    root: Path,
    address: str,
    count: int,
    show: Callable[[Counted], AbstractContextManager[None]],
    stop: threading.Event,
) -> int:
    """Start the server processes, and replace those that end, until a signal; return the exit code."""
    from hub.wire.counts import Totals
    from hub.wire.processes import ask_counts

    make_root(str(root))
    with (
        serving(str(root)),
        _folder() as folder,
        _reserved(address) as address,
        show(Totals(str(root), ask_counts(folder, count))),
    ):
        return Supervisor(
            count,
            _log,
            "server process",
            serves=True,
            given={"address": address, "folder": folder, "count": count},
            on_ready=lambda: click.echo(f"serving {root} on {address}"),
            stopped=stop,
        ).run()


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _certificates(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTLS | None:
    from hub.wire import ServerTLS

    if certificate is not None or key is not None:
        if certificate is None or key is None:
            raise click.UsageError("--certificate and --key need each other")
        return ServerTLS(certificate, key, client_ca)
    if client_ca is not None:
        raise click.UsageError("--client-ca needs --certificate and --key")
    return None


@contextmanager
def _shown(
    counted: Counted, metrics: int | None, page: int | None, tokens: Path | None, allow_changes: bool
) -> Iterator[None]:
    """Serve the metrics and the web page, if they are wanted."""
    with ExitStack() as stack:
        if metrics is not None:
            from hub.wire.metrics import serve_metrics

            click.echo(f"metrics on 127.0.0.1:{serve_metrics(counted, metrics)}", err=True)
        if page is not None:
            from hub.page.serving import PageServer

            server = PageServer(
                [counted.root], port=page, tokens=tokens, allow_changes=allow_changes, counts=lambda: _for_page(counted)
            )
            click.echo(f"the page is at {stack.enter_context(server).url}", err=True)
        yield


def _for_page(counted: Counted) -> HubCounts:
    from hub.page.views import HubCounts

    found = counted.counts()
    refusals = dict(sorted(found.refusals.items()))
    return HubCounts(found.messages, found.bytes, refusals, found.streams + found.followers, found.copiers)


@contextmanager
def _folder() -> Iterator[str]:
    """Yield a folder for the sockets of the processes, and what they count together."""
    with process_folder.made() as folder:
        if len(folder) > _SOCKET_BYTES:
            raise click.UsageError(f"{folder}: this path is too long for a Unix socket; set TMPDIR to a shorter one")
        yield folder


@contextmanager
def _others(told: Supervised) -> Iterator[Processes]:
    """Yield the other processes, as one of them sees them."""
    from hub.wire.processes import Processes

    folder = told.given["folder"]
    with process_folder.using(folder), Processes(folder, told.number, told.given["count"]) as others:
        yield others
    if told.is_orphan:  # the supervisor was killed, and cannot remove the folder: its pipe may end before its lock
        process_folder.remove(folder, wait=True)


@contextmanager
def _reserved(address: str) -> Iterator[str]:
    """Reserve a port for this process and those that it starts; yield the address with the actual port.

    Raises:
        OSError: another program has the port.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"several processes need an address like host:port, got {address}; pass --processes 1")
    missing: OSError | None = None
    with ExitStack() as stack:
        try:
            places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            reserved = False
            for family, _, _, _, place in places:
                try:
                    bound = stack.enter_context(_bound(family, (place[0], int(port), *place[2:])))
                except OSError as error:
                    if error.errno not in _NO_ADDRESS:
                        raise
                    missing = error  # such as the IPv6 address of localhost in a container without IPv6
                else:
                    port, reserved = str(bound.getsockname()[1]), True
            if missing is not None and not reserved:
                raise missing
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
        yield f"{host}:{port}"


def _bound(family: socket.AddressFamily, place: tuple[int | str | bytes, ...]) -> socket.socket:
    """Return a socket that has an address, and does not listen.

    Old connections of a hub that has ended do not count. Other programs do, in this moment and later: the options are
    exchanged afterwards, so that only sockets of this user that share the port too may bind.
    """
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        bound.close()
        raise
    return bound
