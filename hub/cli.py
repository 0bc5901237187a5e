"""``sej hub serve | push | ls | merge | clean | token``: a hub from the command line.

``copy`` is ``push``, and ``stats`` is ``ls``, as they were once called; the help does not show them.

gRPC is loaded by the subcommands that speak it, and by no other.
"""

from __future__ import annotations

import json as jsonlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hub.merge import Merge
from hub.naming import find_sources, is_root, require_root
from hub.overview import stats as stats_of
from hub.retention import clean as clean_root
from hub.store import MIN_FREE_BYTES, Store
from sej.cli.choosing import DURATION, SIZE
from sej.cli.output import as_json, as_text
from sej.cli.pipes import until_reader_leaves
from sej.errors import NotAJournalError, SejError

if TYPE_CHECKING:
    from hub.wire import ClientTLS, Progress, ServerTLS

__all__ = ["app", "clean", "list_", "merge", "push", "serve", "token"]

_COMMIT_MESSAGES: Final = 1000
_PATH: Final = click.Path(path_type=Path)
_ROOT: Final = click.argument("root", metavar="ROOT", type=_PATH)
_OPTIONS: Final = {
    "tls=ServerTLS(...)": "--certificate and --key",
    "tls=ClientTLS(...)": "--ca",
    "allow_plaintext=True": "--plaintext",
    "answer_bytes": "--answer-bytes",
}
_PLAINTEXT: Final = click.option("--plaintext", is_flag=True, help="Beyond this machine without TLS, all the same.")


def _host_and_port(_: click.Context, __: click.Parameter, address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise click.BadParameter(f"{address!r} is no address: host:port is due, as in 127.0.0.1:7890")
    return address


@contextmanager
def _in_words_of_the_command() -> Iterator[None]:
    """What the library says of its arguments, said of the options."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for argument, option in _OPTIONS.items():
            text = text.replace(argument, option)
        raise click.UsageError(text) from None


@click.group("hub")
def app() -> None:
    """A hub: the journals of many machines in one place."""


@app.command()
@_ROOT
@click.option(
    "--address", default="127.0.0.1:7890", show_default=True, callback=_host_and_port, help="Where to listen."
)
@click.option("--certificate", type=_PATH, help="The server's, PEM.")
@click.option("--key", type=_PATH, help="Its private key, PEM.")
@click.option("--client-ca", type=_PATH, help="Mutual TLS: who signs the clients' certificates.")
@click.option("--tokens", type=_PATH, help="The file of tokens; without it nobody is asked.")
@_PLAINTEXT
@click.option("--max-open", default=256, show_default=True, help="Writers that are open at a time.")
@click.option("--min-free", type=SIZE, default=MIN_FREE_BYTES, help="What stays free on the disk, as in 1G.")
@click.option(
    "--max-streams", type=click.IntRange(min=1), default=256, show_default=True, help="Reading streams at a time."
)
@click.option(
    "--answer-bytes",
    type=SIZE,
    default=1 << 28,
    help="Memory of all answers to readers together, as in 256M (the default).",
)
@click.option("--client-bytes", type=SIZE, help="What each client may have, as in 50G.")
@click.option("--metrics", type=click.IntRange(0, (1 << 16) - 1), help="Serve Prometheus on this port of the loopback.")
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
    answer_bytes: int,
    client_bytes: int | None,
    metrics: int | None,
) -> None:
    """Serve a root until SIGTERM or an interrupt; what was acknowledged is on the disk.

    Example: sej hub serve --certificate hub.pem --key hub.key --tokens tokens --address 0.0.0.0:7890 /srv/hub
    """
    from hub.wire import Server, ServerTLS

    tls: ServerTLS | None = None
    if certificate is not None or key is not None:
        if certificate is None or key is None:
            raise click.UsageError("--certificate and --key go together")
        tls = ServerTLS(certificate, key, client_ca)
    elif client_ca is not None:
        raise click.UsageError("--client-ca needs --certificate and --key")
    stop = _stop_on_signals()
    with (
        _in_words_of_the_command(),
        Store(root, max_open, max_client_bytes=client_bytes, min_free_bytes=min_free) as store,
        Server(
            store,
            address,
            tls=tls,
            tokens=tokens,
            allow_plaintext=plaintext,
            max_streams=max_streams,
            answer_bytes=answer_bytes,
        ) as server,
    ):
        if metrics is not None:
            from hub.wire.metrics import serve_metrics

            click.echo(f"metrics on 127.0.0.1:{serve_metrics(server, metrics)}", err=True)
        click.echo(f"serving {root} on {server.address}")
        stop.wait()


@app.command()
@click.argument("path", metavar="PATH", type=_PATH)
@click.argument("address", metavar="ADDRESS", callback=_host_and_port)
@click.option("--client", "client_id", required=True, help="Who this is.")
@click.option("--journal", help="The name on the hub, for one SEJ directory.")
@click.option("--token-file", type=_PATH, help="A file that holds the token.")
@click.option("--ca", type=_PATH, help="TLS: who signed the hub's certificate.")
@click.option("--certificate", type=_PATH, help="Mutual TLS: this client's.")
@click.option("--key", type=_PATH, help="Its private key.")
@_PLAINTEXT
@click.option("--follow", is_flag=True, help="Go on with what comes, until SIGTERM or an interrupt.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def push(
    path: Path,
    address: str,
    client_id: str,
    journal: str | None,
    token_file: Path | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    plaintext: bool,
    follow: bool,
    quiet: bool,
) -> None:
    """Copy a SEJ directory, or a tree of shards, to a hub; PATH's messages that the hub has are not sent again.

    Example: sej hub push --follow --client EWR --ca ca.pem --token-file token /var/lib/flights hub.example.com:7890
    """
    from hub.wire import Client, ClientTLS, Copier

    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together")
    tls: ClientTLS | None = None if ca is None and certificate is None else ClientTLS(ca, certificate, key)
    shown = token_file.read_text().strip() if token_file else None
    terminal = sys.stderr.isatty() and not quiet

    def show(progress: Progress) -> None:
        if terminal:
            click.echo(f"\r{progress}", nl=False, err=True)

    with _in_words_of_the_command():
        client = Client(address, client_id=client_id, token=shown, tls=tls, allow_plaintext=plaintext)
    with client, Copier(path, client, journal_dir=journal, on_progress=show) as copier:
        copied = copier.run(_stop_on_signals()) if follow else copier.run_once()
    if terminal:
        click.echo(err=True)
    click.echo(copied)


@app.command("ls")
@_ROOT
@click.option("--json", is_flag=True, help="One JSON object a line.")
def list_(root: Path, json: bool) -> None:
    """List what a hub holds: offsets, bytes, when something came last, how far behind each reader is.

    Example: sej hub ls /srv/hub
    """
    held = stats_of(root)
    _require_some(root, held)
    for journal in held:
        row: dict[str, Any] = journal._asdict() | {"lag": dict(journal.lag), "messages": journal.messages}
        row |= dict(zip(("client", "journal"), row.pop("source"), strict=True))
        if json:
            click.echo(jsonlib.dumps(row))
            continue
        came = "never"
        if journal.last_arrival_ns is not None:
            came = datetime.fromtimestamp(journal.last_arrival_ns / 1e9, UTC).isoformat(timespec="seconds")
        behind = "".join(f"  {reader} -{count}" for reader, count in sorted(journal.lag.items()))
        click.echo(
            f"{journal.source}  {journal.first_offset}..{journal.end_offset}  {journal.size} bytes  last {came}{behind}"
            + ("" if journal.error is None else f"  {journal.error}")
        )


@app.command()
@_ROOT
@click.option("--max-age", type=DURATION, help="How old a segment's last append may be, as in 7d.")
@click.option("--max-bytes", type=SIZE, help="What one journal may take, as in 10G.")
@click.option("--keep-segments", type=click.IntRange(min=1), default=1, show_default=True, help="Newest that stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def clean(root: Path, max_age: float | None, max_bytes: int | None, keep_segments: int, dry_run: bool) -> None:
    """Remove old segments that no reader needs, in every client's journals; prints the paths that went.

    Example: sej hub clean --max-age 7d /srv/hub
    """
    if max_age is None and max_bytes is None:
        raise click.UsageError("--max-age, --max-bytes or both are due: without a limit nothing is too old")
    failed: SejError | None = None
    done = clean_root(root, max_age_s=max_age, max_bytes=max_bytes, keep_segments=keep_segments, dry_run=dry_run)
    for source, paths in done.items():
        if isinstance(paths, SejError):
            click.echo(f"{source}: {paths}", err=True)
            failed = paths
            continue
        for path in paths:
            click.echo(path)
    if failed is not None:
        raise failed


@app.command()
@click.option("--write", "client_id", help="For writing as one client id.")
@click.option("--read", "patterns", help="For reading client ids that match, as in 'J*,EWR'.")
@click.option("--until", help="When it ends, as in 2027-01-01T00:00:00Z.")
def token(client_id: str | None, patterns: str | None, until: str | None) -> None:
    """Make a token: the token itself on the first line, the line for the server's file on the second.

    Example: sej hub token --write EWR
    """
    from hub.wire.access import hash_token, make_token, parse_line

    if (client_id is None) == (patterns is None):
        raise click.UsageError("one of --write and --read is due")
    fresh = make_token()
    role, clients = ("write", client_id) if client_id is not None else ("read", patterns)
    line = f"{hash_token(fresh)}  {role}  {clients}" + (f"  {until}" if until else "")
    try:
        parse_line(line)
    except ValueError:
        raise click.UsageError(
            "a server would not take this line: one client id (--write) or patterns without blanks (--read), and for"
            " --until a time with its zone are due"
        ) from None
    click.echo(f"{fresh}\n{line}")


@app.command()
@_ROOT
@click.option("--reader", default="sej", show_default=True, help="Whose place is kept: the next run goes on there.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=0.0, help="Seconds without a message; 0: what is there."
)
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted.")
@click.option("--json", is_flag=True, help="One JSON object a line.")
def merge(root: Path, reader: str, timeout: float, follow: bool, json: bool) -> None:
    """Print the messages of all clients as one stream, by time; each once for a reader, whose place is kept.

    Example: sej hub merge --reader report /srv/hub
    """
    require_root(str(root))
    _require_some(root, find_sources(str(root)))
    out = sys.stdout.buffer
    with Merge(root, reader, None if follow else timeout) as merged, until_reader_leaves():
        for count, (source, message) in enumerate(merged, 1):
            if json:
                row = {"client": source.client, "journal": source.journal_dir} | jsonlib.loads(as_json(message))
                out.write(jsonlib.dumps(row, ensure_ascii=False).encode() + b"\n")
            else:
                out.write(f"{source}\t{as_text(message)}\n".encode())
            if follow or count % _COMMIT_MESSAGES == 0:
                out.flush()
                merged.commit()
        out.flush()
        merged.commit()


def _require_some(root: Path, held: Sequence[object]) -> None:
    """Make sure that an unmarked directory is a hub's root."""
    if not held and not is_root(root):
        raise NotAJournalError("no client has a journal here: it is no hub's root", path=root)


def _hidden(command: click.Command) -> click.Command:
    """The same command for those who know it by another name."""
    alias = copy(command)
    alias.hidden = True
    return alias


app.add_command(_hidden(push), "copy")
app.add_command(_hidden(list_), "stats")


def _stop_on_signals() -> threading.Event:
    """An event that SIGTERM and an interrupt set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
