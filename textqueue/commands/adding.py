"""``sej tq add``: appends messages."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.parameters import FilePath
from textqueue.commands.opening import JSON, QUEUE, name_of, print_json, print_line, refuse_foreign, reporting, require
from textqueue.format.grammar import MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import check as check_file


@click.command
@click.argument("given", metavar="PATH", type=FilePath(path_type=str, readable=False))
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    help="A variable line such as 'retries=3 ', whose space leaves room for 10; may be repeated.",
)
@click.option("--comment", is_flag=True, help="Write comments instead of messages.")
@click.option(
    "--writer", help="In a directory: append to the file WRITER.tq. The default is the name of the user ($USER)."
)
def add(given: str, texts: tuple[str, ...], variables: tuple[str, ...], comment: bool, writer: str | None) -> None:
    """Append messages: the texts, or each line of standard input. The file is created if it is missing.

    A file that is not a queue is refused, unless its name ends in .tq. A path that ends with a slash is a directory.

    In a directory, each user or program has a file of its own, so that a person who edits another file cannot remove
    what was added meanwhile.

    Prints the name of each message, POSITION:HASH, for `sej tq done` and `sej tq fail`.

    Example: sej tq add jobs.tq 'ship 17' --variable 'retries=3 '
    """
    path = Path(given)
    refuse_foreign(path)
    lines = texts or [line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer]
    with reporting(TextQueue(given, writer=writer)) as queue:
        status = MessageStatus.comment if comment else MessageStatus.queued
        for message in queue.append_many(lines, variables, status=status):
            print_line(name_of(message, path))


@click.command
@QUEUE
@JSON
def check(path: Path, json: bool) -> None:
    """Report probable typing mistakes, as file:line:column. Exit code 1: there are some.

    A hint needs no action: the exit code is 0 if there are only hints.

    Example: sej tq check jobs.tq
    """
    require(path)
    with TextQueue(path) as queue:
        problems = [problem for file in queue.input_files for problem in check_file(file)]
    for problem in problems:
        if json:
            print_json(problem._asdict())
        else:
            print_line(str(problem))
    if any(problem.severity != "hint" for problem in problems):
        raise SystemExit(Exit.WRONG)
