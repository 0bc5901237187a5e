"""``sej worker``: run a Python function for each item of a queue, in threads and processes.

With one process, and without ``--time-limit`` and ``--reload``, the function runs in this process. Otherwise this
process only supervises: it starts the workers, starts a new one for each that fails (after a pause if that happens
again and again), and asks all of them to end on SIGTERM and SIGINT. A worker whose item reaches the time limit ends
itself, because no thread can be stopped from outside. Workers also end if this process is killed: each of them reads
from a pipe that then ends.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import click

from sej.checks import POSITIVE_SECONDS, handler_of
from sej.cli.shared.options import DURATION, MAX_ATTEMPTS
from sej.cli.shared.parameters import IntRange
from sej.cli.shared.places import Place, placed_command
from sej.cli.shared.supervising import MAX_PROCESSES, Supervisor, is_supervised, supervised
from sej.queue.work import MAX_THREADS, work

_TOO_LATE: Final = 75
"""The exit code of a worker whose item reached its time limit."""
_log: Final = logging.getLogger("sej.worker")  # not click.echo: the supervisor continues without standard error


@click.command
@placed_command
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--threads", type=IntRange(1, MAX_THREADS), default=1, show_default=True, help="Threads in each process.")
@click.option("--processes", type=IntRange(1, MAX_PROCESSES), default=1, show_default=True, help="Processes.")
@click.option(
    "--lease",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long an item stays leased; renewed while the function runs.",
)
@MAX_ATTEMPTS
@click.option("--time-limit", type=DURATION, help="Retry an item, and start a new process, after this time, as in 5m.")
@click.option(
    "--until-empty", is_flag=True, help="End when no item is ready, waits for its time or is held by a worker."
)
@click.option("--reload", is_flag=True, help="For development: restart when a .py file below this directory changes.")
def worker(
    place: Place,
    target: str,
    threads: int,
    processes: int,
    lease: float,
    max_attempts: int | None,
    time_limit: float | None,
    until_empty: bool,
    reload: bool,
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
    if (processes > 1 or reload or time_limit is not None) and not is_supervised():
        _function(target)  # a wrong name ends this command, not each of its workers
        with place.open_existing(lease_s=lease, max_attempts=max_attempts):
            pass  # and so does a queue that cannot be opened
        changed = _Changes().found if reload else None
        supervisor = Supervisor(processes, _log, "worker process", expected_codes=(_TOO_LATE,), has_changed=changed)
        raise SystemExit(supervisor.run())
    function = _function(target)
    supervised()
    with place.open_existing(lease_s=lease, max_attempts=max_attempts) as opened:
        work(
            opened,
            function,
            threads,
            until_empty=until_empty,
            time_limit_s=time_limit,
            on_time_limit=lambda _: os._exit(_TOO_LATE),
        )


def _function(target: str) -> Callable[[Any], Any]:
    """Return the function that ``module:function`` names."""
    module, colon, name = target.partition(":")
    if not colon or not module or module.startswith(".") or module.endswith(".py") or not name:
        raise click.UsageError(f"the function must be MODULE:FUNCTION, as in tasks:send, got {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except (ImportError, SyntaxError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        hint = "; start the worker in the directory of this module, or set PYTHONPATH" if missing else ""
        raise click.UsageError(f"module {module!r} cannot be imported: {error}{hint}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise click.UsageError(f"module {module!r} has no {name!r}") from error
    try:
        handler_of("item")(target, found)
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    function: Callable[[Any], Any] = found
    return function


class _Changes:
    """Notices that a Python file below this directory has changed."""

    def __init__(self) -> None:
        self._stamps = _stamps()

    def found(self) -> bool:
        """Return whether a file has changed since the last call."""
        before, self._stamps = self._stamps, _stamps()
        return before != self._stamps


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
