"""``sej verify``: reads everything once and reports what is wrong."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.output import counted, shown
from sej.cli.shared.parameters import PATH
from sej.cli.shared.progress import progress_bar
from sej.cli.shared.units import human_size
from sej.cli.state.readers import holder_of
from sej.journal.verify import Problem
from sej.journal.view import Journal


@click.command
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--json", is_flag=True, help="One JSON object per line.")
def verify(directory: Path, json: bool) -> None:
    """Check a journal against its format, its offsets and its checksums; changes nothing.

    Exit code 0: sound. 1: damaged; prints one line for each problem, with file and position. While a writer runs, an
    incomplete message at the very end is not damage.

    Example: sej verify orders
    """
    journal = Journal(directory)
    with progress_bar("reading", size=True) as show:
        problems = journal.verify(progress=show)
    if any(problem.kind == "torn tail" for problem in problems) and holder_of(os.path.join(directory, "jnl.lck")):
        problems = [problem for problem in problems if problem.kind != "torn tail"]
    for problem in problems:
        click.echo(_row(problem) if json else shown(str(problem)))
    if problems:
        raise SystemExit(Exit.WRONG)
    if not json:
        segments = journal.segments
        size = sum(segment.size for segment in segments)
        click.echo(f"sound: {counted(len(segments), 'segment')}, {human_size(size)}, next offset {journal.end_offset}")


def _row(problem: Problem) -> str:
    row = problem._asdict()
    return jsonlib.dumps({name: value for name, value in row.items() if value is not None})
