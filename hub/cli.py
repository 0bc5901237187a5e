"""``sej hub serve | push | follow | ls | merge | clean | token``: a hub from the command line.

gRPC is imported only by the subcommands that use it.
"""

from __future__ import annotations

import errno
import json as jsonlib
import os
import sys
import time
from collections.abc import Callable, Sized
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from hub.credentials import PLAINTEXT, connecting, host_and_port, option_names, require_pair
from hub.errors import UnavailableError
from hub.merge import Merge
from hub.naming import Source, find_sources, is_root, no_such_journal, require_root, source_path
from hub.overview import clean as clean_root
from hub.overview import stats as stats_of
from hub.store import MIN_FREE_BYTES, Store
from sej.cli.shared.command import DURATION, JSON, PATH, PLACE, SIZE, IntRange, exit_of, print_row, until_reader_leaves
from sej.cli.shared.options import form_options, retention_options
from sej.cli.shared.readers import holder_of
from sej.cli.shared.text import Moment, as_text, human_duration, human_size, json_row, print_messages, shown
from sej.codec.format import MAX_OFFSET
from sej.errors import BadOffsetFileError, NotAJournalError, SejError
from sej.system.disk import OS, absolute_path, read_small, replace_file
from sej.system.process import keep_freed_memory, stop_on_signals, wait_for_signal

if TYPE_CHECKING:
    from hub.readers import Holder
    from hub.wire import Client, Progress

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COMMIT_MESSAGES: Final = 1000
_PLACE_BYTES: Final = 64
_BLOCK_BYTES: Final = 1 << 23
"""More than gRPC's largest buffer for a part of a job's rows, which is the most common large request."""
_KEPT_BYTES: Final = 1 << 25
_ARENAS: Final = 4
"""Python code runs in one thread at a time, so more arenas do not help, and each keeps memory."""
_ROOT: Final = click.argument("root", metavar="ROOT", type=PATH)


def _limit(name: str, default: int, what: str, *argument: str) -> Callable[[_Command], _Command]:
    """Add an option for a number that is at least 1; the argument is named like the option, or as given."""
    return click.option(name, *argument, type=IntRange(min=1), default=default, show_default=True, help=what)


@click.group("hub")
def app() -> None:
    """A hub: the journals of many machines in one place."""


@app.command()
@_ROOT
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
    require_pair(certificate, key)
    if client_ca is not None and certificate is None:
        raise click.UsageError("--client-ca needs --certificate and --key")
    if root.is_dir() and not os.access(root, os.W_OK | os.X_OK):  # else each client would be refused later
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
    if allow_changes and page is None:
        raise click.UsageError("--allow-changes needs --page")
    stop = stop_on_signals()
    with ExitStack() as stack:
        stack.enter_context(option_names())
        from hub.wire import Server, ServerTLS

        tls = None if certificate is None or key is None else ServerTLS(certificate, key, client_ca)
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


@app.command()
@click.argument("path", metavar="PATH", type=PATH)
@connecting
@click.option("--client", "client_id", required=True, help="The client id of this machine.")
@click.option("--journal", "journal_dir", help="The journal's name on the hub, for one SEJ directory.")
@click.option("--follow", is_flag=True, help="Continue with new messages, until SIGTERM or an interrupt.")
@click.option("--accept-gaps", is_flag=True, help="If messages are lost here, let the hub record a gap, and continue.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def push(
    connect: Callable[[str], Client], path: Path, client_id: str, follow: bool, quiet: bool, **options: Any
) -> None:
    """Copy a SEJ directory or a sharded journal to a hub; messages that the hub already has are not sent again.

    Example: sej hub push --follow --client EWR --ca ca.pem --token-file token /var/lib/flights hub.example.com:7890
    """
    from hub.wire import Copier

    terminal = sys.stderr.isatty() and not quiet

    def show(progress: Progress) -> None:
        if terminal:
            click.echo(f"\r{progress}", nl=False, err=True)

    with connect(client_id) as client, Copier(path, client, on_progress=show, **options) as copier:
        copied = copier.run(stop_on_signals()) if follow else copier.run_once()
    if terminal:
        click.echo(err=True)
    if not follow and not copier.progress.journals:
        raise NotAJournalError(
            "there is nothing to copy: this directory has no journal; `--follow` waits for one", path=path
        )
    click.echo(copied)
    for error in copier.progress.failures.values() if follow else ():
        raise error


@app.command("ls")
@_ROOT
@JSON
def list_(root: Path, json: bool) -> None:
    """List the journals of a hub: offsets, bytes, time of the last message, and the lag of each reader.

    A reader that a program has is shown with this program, as host:pid. For one on another machine, also the time that
    the hub waits for it before another program gets the reader.

    Example: sej hub ls /srv/hub
    """
    held = stats_of(root)
    _require_some(root, held)
    for journal in held:
        row: dict[str, Any] = journal._asdict() | {"lag": dict(journal.lag), "messages": journal.messages}
        # While the lease of another machine lasts, the hub's process holds the lock.
        ofs = os.path.join(source_path(str(root), journal.source), "ofs")
        locks = {reader: holder_of(os.path.join(ofs, f"{reader}.lck")) for reader in journal.lag}
        row["holders"] = {reader: _holder_row(journal.holders.get(reader), lock) for reader, lock in locks.items()}
        row |= dict(zip(("client", "journal"), row.pop("source"), strict=True))
        came = "never"
        if journal.last_arrival_ns is not None:
            came = datetime.fromtimestamp(journal.last_arrival_ns / 1e9, UTC).isoformat(timespec="seconds")
        behind = "".join(
            f"  {shown(reader)} {count} behind{_held_by(journal.holders.get(reader), locks[reader])}"
            for reader, count in sorted(journal.lag.items())
        )
        wrong = "" if journal.error is None else f"  {shown(journal.error)}"
        span, size = f"{journal.first_offset}..{journal.end_offset}", human_size(journal.size)
        print_row(row, f"{journal.source}  {span}  {size}  last {came}{behind}{wrong}", json)


@app.command()
@_ROOT
@retention_options
def clean(root: Path, **limits: Any) -> None:
    """Remove old segments that no reader needs, in every client's journals; prints their paths.

    Example: sej hub clean --max-age 7d /srv/hub
    """
    done = clean_root(root, **limits)
    _require_some(root, done)
    code = 0
    for paths in done.values():
        if isinstance(paths, SejError):
            click.echo(f"sej: {paths}", err=True)
            code = exit_of(paths)
        else:
            for path in paths:
                click.echo(path)
    if code:
        raise SystemExit(code)


@app.command()
@click.option("--write", help="Allow writing as this client id.")
@click.option("--append", help="Allow jobs to append as this client id (Spark's sink).")
@click.option("--read", help="Allow reading client ids that match, as in 'J*,EWR'.")
@click.option("--reader", help="The same, and keeping offsets for readers on the hub.")
@click.option("--view", metavar="NAME", help="Allow this person to open the web page.")
@click.option("--change", metavar="NAME", help="The same, and the changes that it offers.")
@click.option("--until", help="When the token expires, as in 2027-01-01T00:00:00Z.")
def token(until: str | None, **roles: str | None) -> None:
    """Create a token: prints the token on the first line, and the line for the server's file on the second.

    Example: sej hub token --write EWR
    """
    from hub.tokens import hash_token, make_token, parse_line

    chosen = [(role, clients) for role, clients in roles.items() if clients is not None]
    if len(chosen) != 1:
        raise click.UsageError("give one of --write, --append, --read, --reader, --view and --change")
    ((role, clients),) = chosen
    fresh = make_token()
    line = f"{hash_token(fresh)}  {role}  {clients}" + (f"  {until}" if until else "")
    try:
        grant = parse_line(line)
    except ValueError:
        raise click.UsageError(
            "a server would refuse this line; expected one client id (--write, --append), patterns without spaces"
            " (--read, --reader) or a name without spaces (--view, --change); --until must be a time with a zone"
        ) from None
    if grant is not None and grant.until is not None and grant.until <= time.time():
        raise click.UsageError(f"--until must be in the future, got {until}")
    click.echo(f"{fresh}\n{line}")


@app.command()
@_ROOT
@click.option(
    "--reader",
    default="sej",
    show_default=True,
    help="The reader whose offsets are committed: the next run continues there.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default=0.0,
    help="How long to wait without a message, as in 30s; 0 prints the existing messages.",
)
@click.option("--follow", is_flag=True, help="Wait for more messages, until interrupted.")
@JSON
def merge(root: Path, reader: str, timeout: float, follow: bool, json: bool) -> None:
    """Print the messages of all clients as one stream, ordered by time; a reader gets each message once.

    Example: sej hub merge --reader report /srv/hub
    """
    require_root(str(root))
    _require_some(root, find_sources(str(root)))
    out = sys.stdout.buffer
    with Merge(root, reader, None if follow else timeout) as merged, until_reader_leaves():
        for count, (source, message) in enumerate(merged, 1):
            if json:
                row = {"client": source.client, "journal": source.journal_dir} | json_row(message)
                out.write(jsonlib.dumps(row, ensure_ascii=False).encode() + b"\n")
            else:
                out.write(f"{source}\t{as_text(message)}\n".encode())
            if follow or count % _COMMIT_MESSAGES == 0:
                out.flush()
                merged.commit()
        out.flush()
        merged.commit()


@app.command("follow")
@connecting
@click.argument("client_id", metavar="CLIENT")
@click.argument("journal", metavar="JOURNAL")
@click.option("--start", type=PLACE, help="Start at this offset or time; default: the first message.")
@click.option("--reader", help="Keep the next offset on the hub, under this name: the next run continues there.")
@click.option("--place", type=PATH, help="Keep the next offset in this file: the next run continues there.")
@click.option("--until-end", is_flag=True, help="End with the last message instead of waiting for more.")
@click.option("--no-verify", is_flag=True, help="Do not check the messages against the index's checksums.")
@form_options
def follow_(
    connect: Callable[[], Client],
    client_id: str,
    journal: str,
    start: int | Moment | None,
    reader: str | None,
    place: Path | None,
    until_end: bool,
    no_verify: bool,
    form: str,
) -> None:
    """Print the messages of a client's journal on a hub, and wait for new ones until interrupted.

    With --reader or --place, the offset is kept after the messages were written: each is printed at least once. The hub
    gives a reader to one program at a time, and its retention waits for it. The token needs the role reader. While the
    hub cannot be reached, the command waits and tries again. Exit code 3: another program has the reader at the start,
    and nothing was printed. 1: the hub refuses, or another program has taken the reader while this one ran, because its
    lease had ended; that program prints the messages since the last commit again. 4: the journal is not on the hub.

    --start takes an offset or a time, as `sej scan` does: '1h ago', 2026-01-31.

    Example: sej hub follow --reader report hub.example.com:7890 EWR flights
    """
    from hub.wire.named_readers import batches

    if reader is not None and place is not None:
        raise click.UsageError("--reader keeps the offset on the hub, and --place in a file: give one of them")
    place = None if place is None else Path(absolute_path(place))
    kept = None if place is None else _read_place(place)
    if kept is not None and start is not None:
        raise click.UsageError(
            f"--start is for the first run: leave it out, {place} already has the next offset, {kept}"
        )
    how = {"wait": not until_end, "verify": not no_verify}
    with connect() as hub, until_reader_leaves():
        source, state = Source(client_id, journal), hub.where(journal, client_id=client_id)
        if not state.known:
            raise no_such_journal(source, hub.address)
        if isinstance(start, Moment):
            start = hub.find_time(journal, start.timestamp, client_id=client_id)
        if reader is not None:
            _follow_as(reader, hub, client_id, journal, start, form, **how)
            return
        offset = kept if kept is not None else start if start is not None else state.first_offset
        retry = None if until_end else _report
        for messages in batches(hub, source, offset, was_there=kept is not None, on_retry=retry, **how):
            print_messages(messages, form)
            sys.stdout.buffer.flush()
            if place is not None:
                replace_file(OS, f"{place}.tmp", place, b"%d\n" % (messages[-1].offset + 1))


def _follow_as(
    name: str, hub: Client, client_id: str, journal: str, start: int | None, form: str, *, wait: bool, verify: bool
) -> None:
    """Print the messages after those that the reader has committed."""
    from hub.wire import Reader

    with Reader(hub, name, client_id, journal, start=start, wait=wait, verify=verify, on_retry=_report) as reader:
        if start is not None and not reader.is_new:
            raise click.UsageError(f"leave --start out: reader {name!r} continues at offset {reader.offset}")
        for messages in reader:
            print_messages(messages, form)
            sys.stdout.buffer.flush()
            try:
                reader.commit()
            except UnavailableError as error:
                if not wait:
                    raise
                _report(error)  # the next commit includes these messages


def _report(error: UnavailableError) -> None:
    click.echo(f"sej: {error}; trying again", err=True)


def _read_place(path: Path) -> int | None:
    """Return the kept offset, or None if nothing is kept."""
    try:
        text = read_small(OS, os.fspath(path), _PLACE_BYTES).strip()
    except FileNotFoundError:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_OFFSET):
        raise BadOffsetFileError("expected the next offset, a number; remove the file to start again", path=str(path))
    return int(text)


def _held_by(remote: Holder | None, lock: str | None) -> str:
    if remote is None:
        return "" if lock is None else f", held by {lock}"
    if lock is None:
        return f", last held by {remote.name}"
    return f", held by {remote.name} with a lease of {human_duration(remote.lease_s)}"


def _holder_row(remote: Holder | None, lock: str | None) -> dict[str, Any] | None:
    """Return the holder of a reader for ``--json``; None: no program has or had it."""
    if remote is None:
        return None if lock is None else {"holder": lock, "lease_s": None, "held": True}
    return {"holder": remote.name, "lease_s": remote.lease_s, "held": lock is not None}


def _require_some(root: Path, held: Sized) -> None:
    """Check that a directory without the marker is a hub's root."""
    if not held and not is_root(root):
        raise NotAJournalError(
            "no client has a journal here: this is not a hub's root; pass the directory that `sej hub serve` serves",
            path=root,
        )


@click.command
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=IntRange(0, (1 << 16) - 1), default=8080, show_default=True, help="0: a free one.")
@click.option("--certificate", type=PATH, help="The server's certificate, PEM.")
@click.option("--key", type=PATH, help="Its private key, PEM.")
@click.option("--tokens", type=PATH, help="The file of tokens; without it, every visitor is admitted.")
@click.option("--allow-changes", is_flag=True, help="Offer changes too; without it the page only shows.")
def ui(paths: tuple[Path, ...], certificate: Path | None, key: Path | None, **options: Any) -> None:
    """Serve a web page for journals, sharded journals, work queues, hubs and text queues.

    A PATH is a SEJ directory, a directory of them, a hub's root or a .tq file. The page is at http://127.0.0.1:8080
    until SIGTERM or an interrupt. Any address except the loopback interface needs --certificate, --key and --tokens.

    Example: sej ui data jobs.tq
    """
    from hub.page.serving import PageServer

    require_pair(certificate, key)
    stop = stop_on_signals()
    try:
        server = PageServer(paths, certificate=certificate, key=key, **options)
    except ValueError as error:
        text = str(error).replace("pass certificate, key and tokens", "use --certificate, --key and --tokens")
        raise click.UsageError(text) from None
    click.echo(f"the page is at {server.url}")
    with server:
        wait_for_signal(stop)
