"""``sej doctor``: one page on the state of journals, each finding with what to do about it. Changes no journal.

Other packages add checks through the entry-point group ``sej.doctor``: ``name = "module:function"``. The function takes
the path from the command line (a ``pathlib.Path``) and yields :class:`sej.cli.state.findings.Finding` objects, or
tuples with the same fields. Such a check may remove stale files of its own package, and then reports that.
"""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.options import JSON
from sej.cli.shared.output import coloured, shown
from sej.cli.shared.parameters import PATH
from sej.cli.shared.progress import progress_bar
from sej.cli.shared.system_errors import text_of
from sej.cli.state.findings import Finding, findings
from sej.cli.state.packages import package_findings
from sej.cli.state.readers import journals_below
from sej.errors import NotAJournalError, SejError
from sej.journal.view import Journal
from sej.names import PACKAGES
from sej.system.disk import is_scarce

_GROUP: Final = "sej.doctor"
_COLOURS: Final = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command
@click.argument("path", metavar="[DIR]", type=PATH, required=False)
@JSON
@click.option("--quick", is_flag=True, help="Do not read every message.")
def doctor(path: Path | None, json: bool, quick: bool) -> None:
    """Check everything that can be wrong with a journal, and say what to do.

    Reports locks and their holders, damage, torn tails, gaps, readers, their lag and whether they are stuck, the disk,
    the clock, permissions, what a crash left, and other distributions with files of the same names as ours. DIR may
    also hold several journals (a sharded journal, a hub): sound ones are then only counted. Without DIR, only the
    installation is checked. Exit code 0: nothing is wrong; 1: something is wrong; 4: the journal does not exist.

    Example: sej doctor orders
    """
    if path is None:
        _installation(json=json)
        return
    paths = journals_below(path)
    contributed = list(contributed_findings(path))
    if not paths and not contributed:
        raise NotAJournalError("no journal is here; expected a SEJ directory, a sharded journal or a hub", path=path)
    contributed += package_findings()
    alone = paths == [str(path)]
    levels = Counter[str]()
    well = 0
    for journal in paths:
        with progress_bar(f"reading {journal}", size=True) as show:
            found = findings_of(journal, quick=quick, progress=show)
        well += all(finding.level == "ok" for finding in found)
        shown = found if alone or json else [finding for finding in found if finding.level != "ok"]
        _show(shown, journal, json=json, named=not alone)
        levels.update(finding.level for finding in found)
    _show(contributed, str(path), json=json, named=False)
    levels.update(finding.level for finding in contributed)
    if not (alone or json):
        click.echo(f"{_level('ok')}  {well} of {len(paths)} journals")
    if levels["problem"]:
        raise SystemExit(Exit.WRONG)


def _installation(*, json: bool) -> None:
    """Show whether each import name gives our package."""
    sound = Finding("packages", "ok", f"{', '.join(PACKAGES)} are those of sej-journals")
    found = list(package_findings()) or [sound]
    _show(found, "", json=json, named=False)
    if any(finding.level == "problem" for finding in found):
        raise SystemExit(Exit.WRONG)


def findings_of(path: str, *, quick: bool, progress: Callable[[int, int], object] | None = None) -> list[Finding]:
    """Return the findings of a journal; that it cannot be read is a finding too.

    Args:
        path: the journal.
        quick: do not read every message.
        progress: called before each segment with the bytes read and the total bytes.

    Raises:
        OSError: this process has no descriptor or memory left, which says nothing about the journal.
    """
    try:
        return list(findings(Journal(path), quick=quick, progress=progress))
    except (SejError, OSError) as error:
        if is_scarce(error):
            raise
        return [Finding("journal", "problem", text_of(error))]


def contributed_findings(path: Path) -> Iterator[Finding]:
    """Yield the findings of other packages; a check that fails becomes a finding too."""
    from importlib.metadata import entry_points

    for found in entry_points(group=_GROUP):
        try:
            for finding in found.load()(path):
                yield Finding(*finding)
        except Exception as error:  # any package may raise anything; the other findings must still be shown
            yield Finding(found.name, "note", f"this check failed: {error!r}")


def _show(found: list[Finding], journal: str, *, json: bool, named: bool) -> None:
    for finding in found:
        if json:
            row = {"journal": journal, **finding._asdict()} | {"values": dict(finding.values)}
            click.echo(jsonlib.dumps(row))
            continue
        text = f"{f'{journal}: ' if named else ''}{finding.what}: {finding.found}"
        click.echo(f"{_level(finding.level)}  {shown(text)}")
        if finding.do:
            click.echo(f"         -> {shown(finding.do)}")


def _level(level: str) -> str:
    return coloured(f"{level:7}", _COLOURS[level])
