"""``sej tq claim``: takes messages, and runs a program for each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.parameters import DURATION, ProgramCommand, ending, require_program
from sej.queue.interface.values import Backoff
from textqueue.claims.claim import Claim
from textqueue.commands.listing import show
from textqueue.commands.opening import (
    JSON,
    QUEUE,
    SETTLE_S,
    JournalsLike,
    directories,
    name_of,
    note_if_foreign,
    opened,
    shell,
)
from textqueue.format.grammar import RETRIES
from textqueue.queue import TextQueue
from textqueue.reading.cursor import follow


@click.command(cls=ProgramCommand)
@QUEUE
@click.argument("command", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--all", "all_", is_flag=True, help="With a PROGRAM: repeat until no queued message is left.")
@click.option("--timeout", type=DURATION, help="Wait for a message, as in 30s. With --all: for each further one.")
@click.option("--lease", type=DURATION, help="After this time, as in 10m, another worker may take the message.")
@JSON
@click.pass_obj
def claim(
    journals: JournalsLike,
    path: Path,
    command: tuple[str, ...],
    all_: bool,
    timeout: float | None,
    lease: float | None,
    json: bool,
) -> None:
    """Claim the next queued message, so that no other worker gets it, and run a program with its text as input.

    If the program exits with 0, the message is marked as cleared. Otherwise it is put back, or marked as a critical
    error if its retries are used up. A message that failed is tried again after a delay, which grows from one second to
    ten minutes. Others are claimed meanwhile. With --all, a message without the variable `retries` is tried once, not
    again and again.

    Without a program, the message is printed, and the calling shell owns it until `sej tq done`, `sej tq fail`, or the
    end of the shell. Exit code 4: no message is queued; 1: the program failed.

    Example: sej tq claim jobs.tq -- ./work
    """
    require_program(command, json=json)
    if all_ and not command:
        raise click.UsageError("--all needs a program, as in `sej tq claim --all jobs.tq -- ./work`")
    taken, failed = 0, 0
    with opened(path) as queue, journals.until_reader_leaves():
        for held in _claims(queue, path, None if command else shell(), timeout, lease):
            taken += 1
            if not command:
                show(held.message, path, json=json)
                return
            failed += not _run(held, command, path)
            if not all_:
                break
        if not taken:
            note_if_foreign(queue, path)
    if failed or not taken:
        raise SystemExit(Exit.WRONG if taken else Exit.MISSING)


def _claims(
    queue: TextQueue, path: Path, owner: str | None, timeout: float | None, lease: float | None
) -> Iterator[Claim]:
    """Yield claims. A message that has no retries is claimed again after a failure, but yielded once."""
    attempts: set[tuple[str, int, str, str | None]] = set()
    waiting = follow(
        lambda: queue.take(owner, lease_s=lease),
        lambda: directories(queue, path),
        timeout=timeout or 0.0,
        settle_s=SETTLE_S,
        stop=None,
    )
    for held in waiting:
        message = held.message
        attempt = message.path, message.position, message.value, message.get(RETRIES)
        if attempt not in attempts:  # otherwise this run has tried it, and keeps the claim until the queue is closed
            attempts.add(attempt)
            yield held


def _run(held: Claim, command: tuple[str, ...], path: Path) -> bool:
    try:
        code = subprocess.run(command, input=held.message.value_bytes, check=False).returncode
    except BaseException:
        held.give_back()
        raise
    if not code:
        held.done()
        return True
    reason = ending(code)
    click.echo(f"sej: {path}: message {name_of(held.message, path)}: {command[0]}: {reason}", err=True)
    held.failed(reason, delay_s=Backoff().after(held.attempts))
    return False
