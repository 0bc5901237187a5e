"""``sej doctor``: one page on the health of journals, each finding with what to do about it. Changes no journal.

Other packages add checks through the entry-point group ``sej.doctor``: ``name = "module:function"``, a function of the
path as it was given (a ``pathlib.Path``) that gives :class:`sej.cli.findings.Finding` objects, or tuples of the same.
Such a check may sweep litter of its own package that nobody will ever read, and then says so.
"""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from sej.cli.choosing import JSON
from sej.cli.exits import Exit
from sej.cli.findings import Finding, findings
from sej.cli.progress import progress_bar
from sej.cli.standing import journals_below
from sej.errors import NotAJournalError, SejError
from sej.journal.view import Journal

__all__ = ["doctor"]

_GROUP: Final = "sej.doctor"
_COLOURS: Final = {"well": "green", "note": "yellow", "wrong": "red"}


@click.command
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@JSON
@click.option("--quick", is_flag=True, help="Do not read every message.")
def doctor(path: Path, json: bool, quick: bool) -> None:
    """Look at everything that can be wrong with a journal, and say what to do.

    Locks and who holds them, damage, torn tails, gaps, readers, their lag and whether they are stuck, the disk, the
    clock, permissions, what a crash left behind. DIR may hold journals, as a tree of shards or a hub's root: then what
    is well is only counted. Exit code 0: all is well, or worth a note; 1: something is wrong; 4: there is no journal.

    Example: sej doctor orders
    """
    paths = journals_below(path)
    contributed = list(_contributed(path))
    if not paths and not contributed:
        raise NotAJournalError("there is no journal in this directory", path=path)
    alone = paths == [str(path)]
    levels = Counter[str]()
    well = 0
    for journal in paths:
        found = _looked(journal, quick=quick)
        well += all(finding.level == "well" for finding in found)
        shown = found if alone or json else [finding for finding in found if finding.level != "well"]
        _show(shown, journal, json=json, named=not alone)
        levels.update(finding.level for finding in found)
    _show(contributed, str(path), json=json, named=False)
    levels.update(finding.level for finding in contributed)
    if not (alone or json):
        click.echo(f"{_level('well')}  {well} of {len(paths)} journals")
    if levels["wrong"]:
        raise SystemExit(Exit.WRONG)


def _looked(path: str, *, quick: bool) -> list[Finding]:
    """What is found; a journal that cannot be looked at is a finding too."""
    try:
        with progress_bar(f"reading {path}", size=True) as show:
            return list(findings(Journal(path), quick=quick, progress=show))
    except (SejError, OSError) as error:
        return [Finding("journal", "wrong", str(error), "give this user what it may not read, or look at the disk")]


def _contributed(path: Path) -> Iterator[Finding]:
    """What other packages find; one that fails says so, and hides nothing."""
    from importlib.metadata import entry_points

    for found in entry_points(group=_GROUP):
        try:
            for finding in found.load()(path):
                yield Finding(*finding)
        except Exception as error:  # whatever a foreign check raises: the page goes on
            yield Finding(found.name, "note", f"this check failed: {error!r}")


def _show(found: list[Finding], journal: str, *, json: bool, named: bool) -> None:
    for finding in found:
        if json:
            click.echo(jsonlib.dumps({"journal": journal, **finding._asdict()}))
            continue
        click.echo(f"{_level(finding.level)}  {f'{journal}: ' if named else ''}{finding.what}: {finding.found}")
        if finding.do:
            click.echo(f"       -> {finding.do}")


def _level(level: str) -> str:
    from sej.cli.output import coloured

    return coloured(f"{level:5}", _COLOURS[level])
