"""``sej worker``, ``relay`` and ``forward``: the commands that run on, and move each item or message once it comes.

``sej worker`` runs a Python function for each item of a queue, in threads and processes.

With one process, and without ``--time-limit`` and ``--reload``, the function runs in this process. Otherwise this
process only supervises: it looks at the workers every half second, starts a new one for each that failed, and asks all
of them to end on SIGTERM and SIGINT. A worker whose item reaches the time limit ends itself, because no thread can be
stopped from outside. Workers also end if this process is killed: each of them reads from a pipe that then ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import click

from sej.checks import POSITIVE_SECONDS, handler_of
from sej.cli.queue import Place, placed_command
from sej.cli.shared.command import AGE, DIRECTORY, DURATION, PATH, SIZE, IntRange, refuse
from sej.cli.shared.options import MAX_ATTEMPTS, WAIT, lease_option
from sej.cli.shared.text import counted
from sej.queue.interface.values import SERIALIZERS, Limit
from sej.queue.work import MAX_THREADS, work
from sej.system.process import stop_on_signals

_MAX_PROCESSES: Final = 1_000
"""More are a mistake, and could stop the machine."""
_SUPERVISED: Final = "SEJ_SUPERVISED"
"""Set for a supervised process: the descriptor of a pipe that ends with the supervisor."""
_LOOK_S: Final = 0.5
_TOO_LATE: Final = 75
"""The exit code of a worker whose item reached its time limit."""
_log: Final = logging.getLogger("sej.worker")  # not click.echo: the supervisor continues without standard error


@click.command
@placed_command
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--threads", type=IntRange(1, MAX_THREADS), default=1, show_default=True, help="Threads in each process.")
@click.option("--processes", type=IntRange(1, _MAX_PROCESSES), default=1, show_default=True, help="Processes.")
@lease_option("the function")
@MAX_ATTEMPTS
@click.option("--serializer", type=click.Choice(SERIALIZERS), help="Decode values; pickle executes code in them.")
@WAIT
@click.option("--time-limit", type=DURATION, help="Retry an item, and start a new process, after this time, as in 5m.")
@click.option(
    "--until-empty", is_flag=True, help="End when no item is ready, waits for its time or is held by a worker."
)
@click.option(
    "--every", type=AGE, help="Also put an item with no value each 15m, for example: a schedule MODULE:FUNCTION."
)
@click.option("--cron", help="The same at the times of a cron expression, as in '0 3 * * mon-fri', in UTC.")
@click.option(
    "--limit",
    metavar="BY=LIMITS",
    callback=lambda _, __, text: None if text is None else _limit(text),
    help="A limit for each kind of items, kept with the queue, as in header:tenant=2 or key:/=2,10/m.",
)
@click.option("--reload", is_flag=True, help="For development: restart when a .py file below this directory changes.")
def worker(
    place: Place,
    target: str,
    threads: int,
    processes: int,
    wait: bool,
    time_limit: float | None,
    until_empty: bool,
    every: float | None,
    cron: str | None,
    reload: bool,
    **options: Any,
) -> None:
    """Call a Python function for each item: an item is done if the function returns, and retried if it raises.

    MODULE:FUNCTION is looked for in this directory too. The function gets the item: its value is item.value. Each
    failure is one line on standard error, with the traceback. SIGTERM ends the command after the items that are being
    handled.

    Example: sej worker mails tasks:send --threads 4
    """
    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    if time_limit is not None:
        POSITIVE_SECONDS("--time-limit", time_limit)  # here: a worker that refuses it would be started again and again
    function = _function(target)  # a wrong name ends this command before it waits, and not each of its workers
    is_scheduled = every is not None or cron is not None
    is_new = wait and not is_scheduled and place.wait(None)
    opens = place.open if is_scheduled and place.backend == "journal" else place.open_existing  # its items are its own
    opened = opens(is_new=is_new, **options)
    if (processes > 1 or reload or time_limit is not None) and _SUPERVISED not in os.environ:
        opened.close()
        raise SystemExit(supervise(processes, reload=reload))
    is_supervised()
    with opened:
        if is_scheduled:
            opened.put(b"" if options["serializer"] is None else None, every=every, cron=cron, schedule=target)
        work(
            opened,
            function,
            threads,
            until_empty=until_empty,
            time_limit_s=time_limit,
            on_time_limit=lambda _: os._exit(_TOO_LATE),
        )


def _limit(text: str) -> Limit:
    """Return the limit of ``--limit``."""
    from sej.queue.take import require_limit  # here, because `sej --help` loads this module too

    by, _, parts = text.rpartition("=")
    found: dict[str, Any] = {"rate" if "/" in part else "concurrency": part.strip() for part in parts.split(",")}
    try:
        if not found.get("concurrency", "0").isdecimal():
            raise ValueError(f"{found['concurrency']!r} is neither a number of items nor a rate")
        if "concurrency" in found:
            found["concurrency"] = int(found["concurrency"])
        limit = Limit(by, **found)
        require_limit("--limit", limit)
    except ValueError as error:
        raise click.UsageError(f"--limit must be as in header:tenant=2,10/m, got {text!r}: {error}") from None
    return limit


def _function(target: str) -> Callable[[Any], Any]:
    """Return the function that ``module:function`` names."""
    module, colon, name = target.partition(":")
    if not colon or not module or module.startswith(".") or module.endswith(".py") or not name:
        raise click.UsageError(f"the function must be MODULE:FUNCTION, as in tasks:send, got {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = import_module(module)
    except (ImportError, SyntaxError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        hint = "; start the worker in the directory of this module, or set PYTHONPATH" if missing else ""
        raise click.UsageError(f"module {module!r} cannot be imported: {error}{hint}") from error
    try:
        function: Callable[[Any], Any] = attrgetter(name)(loaded)
    except AttributeError as error:
        raise click.UsageError(f"module {module!r} has no {name!r}") from error
    try:
        handler_of("item")(target, function)
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    return function


def is_supervised() -> bool:
    """Return whether this process is supervised; it ends with its supervisor then."""
    pipe = os.environ.pop(_SUPERVISED, None)  # not for the commands that this process starts
    if pipe is not None:
        threading.Thread(target=_end_with, args=(int(pipe),), daemon=True).start()
    return pipe is not None


def _end_with(pipe: int) -> None:
    """Send SIGTERM to this process as soon as its supervisor has ended."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(count: int, *, reload: bool) -> int:
    """Run this command in other processes until a signal, or until all have ended well; return the exit code."""
    stopped = stop_on_signals()
    pipe, _end_pipe = os.pipe()  # its other end is open as long as this process runs

    def start() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "sej", *sys.argv[1:]]
        return subprocess.Popen(words, env={**os.environ, _SUPERVISED: str(pipe)}, pass_fds=[pipe])

    files = _stamps() if reload else {}
    workers = [start() for _ in range(count)]
    while workers and not stopped.wait(_LOOK_S):
        before, files = files, _stamps() if reload else {}
        for at, process in enumerate(workers):
            if files != before:
                _log.warning("a file has changed; starting a new worker process")
                process.terminate()
                process.wait()
            elif process.poll():
                _log.warning("a worker process ended with exit code %d; starting another one", process.returncode)
            else:
                continue
            workers[at] = start()
        workers = [process for process in workers if process.poll() != 0]
    for process in workers:
        process.terminate()
    # One that the signal ended had not begun, and held nothing.
    return next((code for process in workers if (code := process.wait()) not in (0, -signal.SIGTERM)), 0)


def _stamps() -> dict[str, int]:
    """Return the Python files below this directory, with the times of their last changes."""
    found = {}
    for folder, folders, names in os.walk("."):  # leaves out a folder that is removed meanwhile
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not name.startswith("."):
                path = os.path.join(folder, name)
                with suppress(OSError):
                    found[path] = os.stat(path).st_mtime_ns
    return found


@click.command
@click.argument("database", metavar="DATABASE")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--table", default="sej_outbox", show_default=True, help="The table of the outbox.")
@click.option("--batch-rows", type=IntRange(min=1), default=1000, show_default=True, help="The most rows of one batch.")
@click.option("--once", is_flag=True, help="Move what is committed, then end; prints the number of rows.")
def relay(database: str, directory: Path, once: bool, **options: Any) -> None:
    """Move the rows that programs commit to an outbox into a journal, each exactly once.

    DATABASE is the path of a database of SQLite, or a postgresql:// URL. DIR is a journal or that of a work queue; it
    is created if it is missing. The command waits for new rows, in a process of its own that is started again if it
    fails. SIGTERM ends it after the current batch.

    Example: sej relay shop.db orders
    """
    from sej.contrib.database import failure_of
    from sej.contrib.outbox import Relay

    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    relay = Relay(database, directory, **options)
    if once:
        try:
            click.echo(counted(relay.run_once(), "row"))
        except failure_of(database) as error:  # without the URL, which may have a password
            refuse(f"the database cannot be used: {error}")
        return
    if not is_supervised():
        raise SystemExit(supervise(1, reload=False))
    relay.run(stop=stop_on_signals())


@click.command
@DIRECTORY
@click.argument("url", metavar="URL")
@click.option("--reader", default="forward", show_default=True, help="The name under which the offset is kept.")
@click.option("--batch-bytes", type=SIZE, default="1M", show_default=True, help="About the most bytes of one request.")
@click.option("--once", is_flag=True, help="Send the existing messages, then end.")
def forward(directory: Path, url: str, once: bool, **options: Any) -> None:
    """Send a journal to another program over HTTP, each message at least once.

    URL says to which: http://HOST:4318 is an OpenTelemetry collector, for a journal of its exporters (OTLP).
    loki+http://HOST:3100?job=NAME is Loki, with the labels of the stream. post+http://HOST/PATH is any program, which
    gets JSON, one object per line as by `sej scan --json`. The same with https.

    While the receiver is away, the command waits and tries again. A message that it refuses becomes a dead letter.
    Headers, such as a token, are those of the variable OTEL_EXPORTER_OTLP_HEADERS for a collector, otherwise of
    SEJ_FORWARD_HEADERS, as in api-key=secret,tenant=shop. SIGTERM ends the command.

    Example: sej forward /var/lib/shop/telemetry http://localhost:4318
    """
    from sej.contrib.forward import Forwarder

    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    try:
        forwarder = Forwarder(directory, url, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sent = forwarder.run_once() if once else forwarder.run(stop_on_signals())
    click.echo(counted(sent, "message"))
