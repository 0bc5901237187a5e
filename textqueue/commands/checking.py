"""``sej tq check``: reports probable mistakes."""

from __future__ import annotations

from pathlib import Path

import click

from sej.cli.shared.exits import Exit
from textqueue.commands.opening import QUEUE, require
from textqueue.commands.output import JSON, print_json, print_line
from textqueue.queue import TextQueue
from textqueue.reading.checker import check as check_file


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
