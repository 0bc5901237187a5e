"""``sej doctor``: one page on a journal's health, each finding with what to do about it. Changes nothing."""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import click

from sej.cli.choosing import DIRECTORY, JSON
from sej.cli.exits import Exit
from sej.cli.standing import holder_of, readers_of
from sej.directory import Directory
from sej.disk import OS, network_file_system
from sej.errors import SejError
from sej.format import NO_TIMESTAMP
from sej.gaps import read_gaps
from sej.journal import Journal

__all__ = ["doctor"]

_FREE_BYTES: Final = 1 << 30
_CLOCK_S: Final = 60.0

_Level = Literal["well", "note", "wrong"]


class _Finding(NamedTuple):
    """What was looked at, how it is, and what to do where it is not well."""

    what: str
    level: _Level
    found: str
    do: str = ""


@click.command
@DIRECTORY
@JSON
@click.option("--quick", is_flag=True, help="Do not read every message.")
def doctor(directory: Path, json: bool, quick: bool) -> None:
    """Look at everything that can be wrong with a journal, and say what to do.

    Locks and who holds them, damage, torn tails, gaps, readers and their lag, the disk, the clock, permissions. Exit
    code 1: something is wrong.

    Example: sej doctor orders
    """
    journal = Journal(directory)
    wrong = False
    for finding in _findings(journal, quick=quick):
        wrong = wrong or finding.level == "wrong"
        if json:
            click.echo(jsonlib.dumps(finding._asdict()))
            continue
        click.echo(f"{finding.level:5}  {finding.what}: {finding.found}")
        if finding.do:
            click.echo(f"       -> {finding.do}")
    if wrong:
        raise SystemExit(Exit.WRONG)


def _findings(journal: Journal, *, quick: bool) -> Iterator[_Finding]:
    places = Directory(journal.path, OS)
    writer = holder_of(places.at("jnl.lck"))
    yield _Finding("writer", "well", f"held by {writer}" if writer else "nobody writes")
    for look in (_permissions, _disk):
        yield from look(places)
    try:
        yield from _messages(journal, places, writing=writer is not None, quick=quick)
        yield from _readers(journal)
    except SejError as error:
        yield _Finding("journal", "wrong", str(error), f"sej repair {journal.path}")


def _permissions(places: Directory) -> Iterator[_Finding]:
    uid = os.stat(places.path).st_uid
    denied, foreign = [], []
    for folder, _, names in os.walk(places.path):
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            denied.append(folder)
        for name in names:
            path = os.path.join(folder, name)
            if not os.access(path, os.R_OK | os.W_OK):
                denied.append(path)
            elif os.stat(path, follow_symlinks=False).st_uid != uid:
                foreign.append(path)
    if denied:
        found = f"{len(denied)} files or directories cannot be read and written by this user, as {denied[0]}"
        yield _Finding("permissions", "wrong", found, "give them to the user that writes the journal")
    elif foreign:
        found = f"{len(foreign)} files belong to somebody else than the directory, as {foreign[0]}"
        yield _Finding("permissions", "note", found, "let one user write a journal")
    else:
        yield _Finding("permissions", "well", "everything can be read and written")


def _disk(places: Directory) -> Iterator[_Finding]:
    kind = network_file_system(places.path)
    if kind is not None:
        yield _Finding("file system", "wrong", f"{kind}: locks and syncs cannot be trusted", "move it to a local disk")
    free = OS.free_bytes(places.path)
    level: _Level = "wrong" if free < _FREE_BYTES else "well"
    do = "sej clean removes segments that no reader needs" if free < _FREE_BYTES else ""
    yield _Finding("disk", level, f"{free} bytes are free", do)
    kept = [os.path.join(folder, name) for folder, _, names in os.walk(places.at("kept")) for name in names]
    if kept:
        size = sum(os.path.getsize(path) for path in kept)
        do = "look through them, then remove them: nobody else does"
        yield _Finding("kept bytes", "note", f"{len(kept)} files, {size} bytes in {places.at('kept')}", do)


def _messages(journal: Journal, places: Directory, *, writing: bool, quick: bool) -> Iterator[_Finding]:
    segments = journal.segments
    size = sum(segment.size for segment in segments)
    span = f"{journal.first_offset} to {journal.end_offset}, {len(segments)} segments, {size} bytes"
    yield _Finding("messages", "well", span)
    problems = [] if quick else journal.verify()
    for problem in problems:
        if problem.kind == "torn tail":
            do = "" if writing else "nothing: the next writer cuts it and keeps the bytes"
            yield _Finding("torn tail", "well" if writing else "note", str(problem), do)
        elif problem.kind == "foreign file":
            yield _Finding("foreign file", "wrong", str(problem), f"move {problem.path} away")
        else:
            yield _Finding("damage", "wrong", str(problem), f"sej repair {journal.path}")
    if not problems:
        yield _Finding("damage", "well", "not looked for (--quick)" if quick else "none: every message was read")
    for gap in read_gaps(places):
        lost = f"messages {gap.start} to {gap.stop - 1} are lost: {gap.reason}"
        yield _Finding("recorded gap", "note", lost, f"the damaged bytes are in {gap.kept}" if gap.kept else "")
    last = next(iter(journal.tail(1)), None)
    if last is not None and last.timestamp != NO_TIMESTAMP:
        ahead = last.timestamp / 1e9 - time.time()
        if ahead > _CLOCK_S:
            found = f"message {last.offset} is {ahead:.0f} s ahead of this machine's clock"
            yield _Finding("clock", "note", found, "compare the clocks of producer and machine")
        else:
            yield _Finding("clock", "well", f"the last message is {-ahead:.0f} s old")


def _readers(journal: Journal) -> Iterator[_Finding]:
    for reader in readers_of(journal):
        what = f"reader {reader.name}"
        runs = reader.holder or "not running"
        if reader.error is not None:
            do = f"sej reset {journal.path} {reader.name} first, or another place"
            yield _Finding(what, "wrong", reader.error, do)
        elif reader.holder is None and reader.behind:
            found = f"{reader.behind} messages behind, not running, last commit {reader.idle_s:.0f} s ago"
            do = f"start it; or, where it is gone for good, sej reset --remove {journal.path} {reader.name}"
            yield _Finding(what, "note", found, do)
        else:
            yield _Finding(what, "well", f"{reader.behind} messages behind, {runs}")
