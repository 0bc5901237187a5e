"""What ``sej doctor`` checks in one journal. Reads only, and changes nothing.

Each advice is in :data:`ADVICE`. A test makes the damage that it is for, runs the commands between its backticks, and
expects that nothing is lost and that the finding is gone or smaller. What is wrong and has no such command is only
described.
"""

from __future__ import annotations

import glob
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple, NewType

import sej
from sej.cli.shared.command import text_of
from sej.cli.shared.options import good_end_of
from sej.cli.shared.readers import holder_of, queues_of, readers_of, stuck
from sej.cli.shared.text import counted, human_duration, human_size, iso_time
from sej.codec.format import NO_TIMESTAMP
from sej.errors import CorruptionError, SejError
from sej.imports import ADVICE as PACKAGE_ADVICE
from sej.imports import PACKAGES, foreign
from sej.journal.directory import Directory, journal_id, read_gaps
from sej.journal.index import BLOCK_BYTES, IndexFile, read_blocks
from sej.journal.repair import Problem
from sej.journal.retention import at_risk
from sej.journal.tail import Tail
from sej.journal.tier import READER, Tier
from sej.journal.view import Journal
from sej.queue.log.format import good_bytes
from sej.reading.offset import wrong_place
from sej.system.disk import OS, is_scarce, network_file_system, open_existing

_KINDS: Final = {"checksum": "changed value", "gap": "corruption"}
"""The advice about the kinds of problems of a journal's check that have not their own."""
_FREE_BYTES: Final = 1 << 30
_FREE_FILES: Final = 1000
_CLOCK_NS: Final = 60 * 10**9
_STUCK_S: Final = 60.0
_QUICK_BYTES: Final = 16 * BLOCK_BYTES

_GROUP: Final = "sej.doctor"
_COPIER: Final = "hub"
"""The reader of `sej hub push`."""
_COPY: Final = "`{aside} && cp COPY/jnl/{name} {file}`"

ADVICE: Final = {
    "corruption": "`sej repair {at}`",
    "changed value": (
        "a repair would accept these bytes as they are. Stop the writers; with a second copy in which this segment has"
        f" the same size, {_COPY}"
    ),
    "lost messages": (
        f"if a second copy has them, before a writer appends: {_COPY}. Otherwise new messages get these offsets, and"
        " readers that are past the end skip them"
    ),
    "identity": (
        "restore it from a copy: `cp COPY/id {file}`. Without one, `rm {file}`: the next writer makes a new identity,"
        " and streams and dead letters treat this as another journal"
    ),
    "gap": "`{aside} && sej repair {at}` records the gap again",
    "torn tail": "nothing: the next writer cuts it and keeps the bytes",
    "foreign file": "`{aside}`",
    "full disk": "`sej clean --max-bytes SIZE {at}` removes segments that no reader needs",
    "pending batch": "if no writer can open the journal, `{aside}`: the batch's messages in the journal stay",
    "pending work": "nothing: the next writer finishes it before its first append",
    "leftovers": "nothing: the next segment and `sej clean` remove what no pending work needs",
    "index": "`sej verify {at} && sej index {at}`",
    "wrong offset": "`sej reset {at} {name} {unread}`: {why}",
    "deleted messages": "`sej reset {at} {name} first`",
    "not copied": "copy the others: `sej hub push --accept-gaps --client CLIENT {at} ADDRESS` records a gap on the hub",
    "not archived": "`sej archive move {at}`",
    "queue log": (
        "nothing: the next opening copies the log to kept/. Items that were done after the damage are delivered again"
    ),
    "dead letters": (
        "`sej queue redrive --name {name} {at}` puts them back once the cause is gone; `sej queue dead --name {name}"
        " {at}` prints the reasons"
    ),
    "deleted items": "nothing: the queue reports them when it is opened, and continues",
    "idle reader": "start it, or if it is gone for good, `sej reset --remove {at} {name}`",
    "idle queue": "start a worker: `sej queue get --name {name} {at} -- PROGRAM`",
}
"""The advice by the damage that it is for; ``sej`` commands ask before they change anything."""

Advice = NewType("Advice", str)
"""A text of :data:`ADVICE`, filled in."""
_NOTHING: Final = Advice("")


Level = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One finding: the level, what was found, and what to do about it.

    ``found`` has rounded numbers for people; ``values`` has exact ones, which ``--json`` prints too.
    """

    what: str
    level: Level
    found: str
    do: Advice = _NOTHING
    values: Mapping[str, float] = {}


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
        return list(_findings(_Look(Journal(path), quick, progress)))
    except (SejError, OSError) as error:
        if is_scarce(error):
            raise
        return [Finding("journal", "problem", text_of(error))]


def _findings(look: _Look) -> Iterator[Finding]:
    """Yield everything about one journal."""
    yield from _permissions(look)
    failed = set()
    for check in (_locks, _disk, _left_behind, _identity, _messages, _tier, _clock, _readers, _queues):
        try:
            yield from check(look)
        except (SejError, OSError, ValueError) as error:
            if is_scarce(error):
                raise
            text = text_of(error)
            if text not in failed:  # one fault may fail several checks
                do = _NOTHING
                if isinstance(error, CorruptionError):
                    file = os.fspath(error.path or "")
                    do = look.advice("gap" if os.path.dirname(file) == look.at("gaps") else "corruption", file)
                yield Finding("journal", "problem", text, do)
            failed.add(text)


class _Look:
    """What all checks of a journal get; quick: without reading every message."""

    def __init__(self, journal: Journal, quick: bool, progress: Callable[[int, int], object] | None) -> None:
        self.journal, self.quick, self.progress = journal, quick, progress
        self.places = Directory(journal.path, OS)
        self.at = self.places.at

    @cached_property
    def writer(self) -> str | None:
        return holder_of(self.at("jnl.lck"))

    def advice(self, kind: str, file: str = "", **names: str) -> Advice:
        """Return what to do about a kind of damage; file: the damaged one."""
        kept, quoted = shlex.quote(self.at("kept")), shlex.quote(file)
        common = {
            "at": shlex.quote(self.places.path),
            "file": quoted,
            "name": shlex.quote(names.pop("name", os.path.basename(file))),
            "aside": f"mkdir -p {kept} && mv --backup=numbered {quoted} {kept}",
        }
        return Advice(ADVICE[kind].format(**common, **names))


def _locks(look: _Look) -> Iterator[Finding]:
    """Report the writer's lock, then those of readers and queues."""
    yield Finding("writer", "ok", f"held by {look.writer}" if look.writer else "no writer")
    locks = sorted(glob.glob(glob.escape(look.at("ofs")) + "/**/*.lck", recursive=True))
    held = [f"{os.path.relpath(path, look.places.path)} by {holder}" for path in locks if (holder := holder_of(path))]
    if held:
        yield Finding("locks", "ok", "; ".join(held))


def _permissions(look: _Look) -> Iterator[Finding]:
    path = look.places.path
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        yield Finding("permissions", "problem", "the file system is read-only; only commands that read work")
        return
    denied = [folder for folder, _, _ in os.walk(path) if not os.access(folder, os.R_OK | os.W_OK | os.X_OK)]
    denied += [file for file in _files(path) if os.path.lexists(file) and not os.access(file, os.R_OK | os.W_OK)]
    if denied:
        found = (
            f"this user cannot read or cannot write {counted(len(denied), 'path')}, the first is {denied[0]}; expected"
            " the user that writes the journal"
        )
        yield Finding("permissions", "problem", found)
    else:
        yield Finding("permissions", "ok", "this user can read and write all files")


def _files(root: str) -> list[str]:
    """Return the files below a directory."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]


def _disk(look: _Look) -> Iterator[Finding]:
    places = look.places
    kind = network_file_system(places.path)
    if kind is not None:
        yield Finding(
            "file system", "problem", f"{kind}: locks and syncs may not be reliable there; expected a local disk"
        )
    free = OS.free_bytes(places.path)
    full = free < _FREE_BYTES
    do, found = _NOTHING, f"{human_size(free)} free"
    if full and len(places.segments()) > 1:
        do = look.advice("full disk")
    elif full:
        found += ", and this journal has one segment: `sej clean` keeps the last one"
    yield Finding("disk", "problem" if full else "ok", found, do, {"free_bytes": free})
    status = os.statvfs(places.path)
    if status.f_files and status.f_favail < _FREE_FILES:
        found = f"room for {status.f_favail} more files: the disk has almost no inodes left for new segments"
        yield Finding("disk", "problem", found)
    kept = _files(look.at("kept"))
    if kept:
        size = sum(map(os.path.getsize, kept))
        found = f"{counted(len(kept), 'file')}, {human_size(size)} in {look.at('kept')}, which no command needs"
        yield Finding("kept bytes", "note", found, values={"files": len(kept), "bytes": size})


def _left_behind(look: _Look) -> Iterator[Finding]:
    """Report what a crash left unfinished. While a writer runs it may still be in use, so nothing is reported."""
    if look.writer:
        return
    intents, staged = (sorted(file.name for file in Path(look.at(folder)).glob("*")) for folder in ("txn", "tmp"))
    pending = [name for name in intents if not name.endswith(".done")]
    for name in pending:
        if name.endswith(".intent") and f"{name.removesuffix('.intent')}.rows" not in staged:
            found = f"the staged rows of an unfinished batch are missing: {look.at('txn', name)}"
            yield Finding("pending batch", "problem", found, look.advice("pending batch", look.at("txn", name)))
    if pending:
        found = f"{len(pending)} started and not finished, the first is {look.at('txn', pending[0])}"
        yield Finding("pending work", "note", found, look.advice("pending work"))
    if staged:
        found = f"{counted(len(staged), 'file')} in {look.at('tmp')}"
        yield Finding("leftovers", "note", found, look.advice("leftovers"))


def _identity(look: _Look) -> Iterator[Finding]:
    try:
        journal_id(look.places)
    except CorruptionError:
        path = look.at("id")
        found = f"{path} is damaged: expected the identity that was written for this journal"
        yield Finding("identity", "problem", found, look.advice("identity", path))


def _messages(look: _Look) -> Iterator[Finding]:
    journal = look.journal
    segments = journal.segments
    size = sum(segment.size for segment in segments)
    first, end = journal.first_offset, good_end_of(journal)
    there = f"offsets {first} to {end - 1}, next offset {end}" if first < end else f"none, next offset {end}"
    span = f"{there}, {counted(len(segments), 'segment')}, {human_size(size)}"
    yield Finding("messages", "ok", span, values={"segments": len(segments), "bytes": size})
    problems = _end_of(journal) if look.quick else journal.verify(progress=look.progress)
    for problem in problems:
        kind = problem.kind
        do = look.advice(_KINDS.get(kind, kind), problem.path)
        if kind == "torn tail":
            yield Finding(kind, "ok" if look.writer else "note", str(problem), _NOTHING if look.writer else do)
        elif kind != "identity":  # reported by itself
            yield Finding(kind if kind == "foreign file" else "damage", "problem", str(problem), do)
    lost = [] if look.writer else list(_lost(look, end))
    yield from lost
    if not look.quick and not problems and all(one.level != "problem" for one in lost):
        yield Finding("damage", "ok", "none: every message was read")
    for gap in read_gaps(look.places):
        where = f"; the damaged bytes are in {gap.kept}" if gap.kept else ""
        yield Finding("recorded gap", "note", f"{gap}{where}")


def _tier(look: _Look) -> Iterator[Finding]:
    """Report whether the cold tier can be reached and has its objects. None is read; quick: not looked for either."""
    if (tier := Tier.of(look.places)) is None:
        return
    found = f"{counted(len(tier.objects), 'object')}, {human_size(tier.size)}, in {tier.address}"
    absent = [] if look.quick else tier.absent()
    if absent:
        found += f"; {len(absent)} missing or of another size, the first is {absent[0]}: put back what a copy has"
    values = {"objects": len(tier.objects), "bytes": tier.size, "absent": len(absent)}
    yield Finding("cold tier", "problem" if absent else "ok", found, values=values)


def _end_of(journal: Journal) -> list[Problem]:
    """Return whether the bytes after the last good message of the last segment are damage."""
    try:
        journal.end_offset  # noqa: B018 it raises
    except CorruptionError as error:
        path = os.fspath(error.path or "")
        return [Problem("corruption", path, error.position or 0, error.offset or 0, error.reason)]
    return []


def _lost(look: _Look, end: int) -> Iterator[Finding]:
    """Report whether messages are gone that were synced. Only the disk or a user can do this.

    The last segment is shorter than it was, or a torn tail begins before its synced end. end: the offset after the last
    message.
    """
    for segment in look.places.segments()[-1:]:
        with OS.open(segment.path, "read") as file:
            kept = look.places.kept_position()
            known = kept.load(file, segment.first_offset)
            size = file.status().size
        on_disk = kept.lost or known
        if on_disk.offset <= end or (kept.lost is None and _end_of(look.journal)):
            continue
        now = f"it has {size} bytes" if kept.lost else "a torn tail begins before that"
        lost = on_disk.offset - end
        found = (
            f"{on_disk.position} bytes of {segment.path} were on the disk, but {now}: messages"
            f" {end} to {on_disk.offset - 1} are gone"
        )
        do = look.advice("lost messages", segment.path)
        yield Finding("lost messages", "problem" if lost > 1 else "note", found, do, {"messages": lost})


def _clock(look: _Look) -> Iterator[Finding]:
    """Compare the newest timestamp, and the last change of a segment, with this machine's clock."""
    newest, unindexed = NO_TIMESTAMP, 0
    for segment in look.places.segments():
        file = open_existing(OS, segment.path, "read")
        if file is None:
            continue
        with file:
            index = IndexFile(look.places, segment).load(file)
            rest = file.status().size - index.position
            unindexed += max(rest - BLOCK_BYTES, 0)
            after = read_blocks(file, index.position, index.due) if not look.quick or rest <= _QUICK_BYTES else ()
            newest = max(newest, *(block.newest_timestamp for block in (*index.blocks, *after)), NO_TIMESTAMP)
    now = time.time_ns()
    changed = max((segment.mtime_ns for segment in look.journal.segments), default=now)
    if changed - now > _CLOCK_NS:
        found = (
            f"segments were changed at {iso_time(changed)}, {_apart(changed, now)} ahead of this machine's clock:"
            " retention by age and `sej stat --health` depend on it"
        )
        yield Finding("clock", "problem", found)
    if newest - now > _CLOCK_NS:
        found = (
            f"a message is dated {iso_time(newest)}, {_apart(newest, now)} in the future: this machine's clock or that"
            " of the producer is wrong, and seeking by time stops at such a message"
        )
        yield Finding("clock", "note", found)
    elif newest != NO_TIMESTAMP:
        values = {"age_s": (now - newest) / 1e9}
        yield Finding("clock", "ok", f"the newest message is {_apart(now, newest)} old", values=values)
    if unindexed:
        found = f"{human_size(unindexed)} are not indexed: opening and seeking read them"
        yield Finding("index", "note", found, look.advice("index"), {"bytes": unindexed})


def _apart(later: int, earlier: int) -> str:
    return human_duration((later - earlier) / 1e9)


def _readers(look: _Look) -> Iterator[Finding]:
    journal, places = look.journal, look.places
    tail, queues = Tail(places), places.queue_names()
    risks = at_risk(places, time.time_ns())
    being_written = sum(good_end_of(journal) - segment.first_offset for segment in journal.segments[-1:])
    for reader in readers_of(journal):
        name, is_queue = reader.name, reader.name in queues
        idle = "idle queue" if is_queue else "not archived" if name == READER else "idle reader"
        values = {"behind": reader.behind, "idle_s": reader.idle_s}
        behind = f"{counted(reader.behind, 'message')} behind"
        halted = stuck(journal.path, reader, _STUCK_S, journal.first_offset) if reader.error is None else None
        level: Level = "problem"
        do = _NOTHING
        try:
            wrong = wrong_place(places, name, tail)
        except (SejError, OSError):  # reader.error has it
            wrong = None
        if wrong is not None:
            found = reader.error or f"it is at offset {reader.offset}, but {wrong.reason}"
            why = "the first message that it has not read" if wrong.known else "which messages it has read is unknown"
            do = look.advice("wrong offset", name=name, unread=str(wrong.unread), why=why)
        elif reader.error is not None:
            found = reader.error
            if name in risks:
                found += f"; {risks[name]}"
            if reader.offset is not None:
                kind = "not copied" if name == _COPIER else "deleted messages"
                do = look.advice("deleted items" if is_queue else kind, name=name)
        elif name in risks:
            found, do = risks[name], look.advice(idle, name=name)
        elif halted is not None:
            found = halted
        elif reader.holder is None and reader.behind > (being_written if name == READER else 0):
            level, found = "note", f"{behind}, not running, last commit {human_duration(reader.idle_s)} ago"
            do = look.advice(idle, name=name)
        else:
            level, found = "ok", f"{behind}, {reader.holder or 'not running'}"
        yield Finding(f"reader {name}", level, found, do, values)


def _queues(look: _Look) -> Iterator[Finding]:
    """Report dead letters, and what an opening would: good records after bad bytes, which are not a torn tail."""
    places = look.places
    for queue in queues_of(places.path):
        name, dead = queue.name, queue.summary.stats["dead"]
        if dead:
            do = look.advice("dead letters", name=name)
            yield Finding(f"queue {name}", "note", counted(dead, "dead letter"), do, {"dead": dead})
        for found in queue.late(_STUCK_S):
            yield Finding(f"queue {name}", "note", found, look.advice("idle queue", name=name))
    for name in sorted(places.queue_names()):
        path = look.at("ofs", f"{name}.queue")
        with OS.open(path, "read") as file:
            good, damaged = good_bytes(file.read(file.size(), 0))
        if damaged:
            found = f"{path}, position {good}: a bad record, followed by good ones"
            yield Finding(f"queue {name}", "problem", found, look.advice("queue log"))


def package_findings() -> Iterator[Finding]:
    """Yield a finding for each of our import names that is not ours, or not ours alone; nothing if all is well."""
    from importlib.metadata import packages_distributions
    from importlib.util import find_spec

    problems, owners = foreign(), packages_distributions()
    home = os.path.dirname(os.path.dirname(sej.__file__))
    for package in PACKAGES:
        others = sorted(set(owners.get(package, ())) - {"sej-journals"})
        if others:
            problems.setdefault(package, f"the distribution {', '.join(others)} has files of the package {package} too")
        if package in problems:
            yield Finding("packages", "problem", problems[package], Advice(PACKAGE_ADVICE))
            continue
        spec = find_spec(package)
        origin = (spec and spec.origin) or "a folder without __init__.py"
        if not origin.startswith(home):
            found = f"import {package} gives {origin}, not the package in {home}: it is found first"
            yield Finding("packages", "note", found)


def contributed_findings(path: Path) -> Iterator[Finding]:
    """Yield the findings of other packages; a check that fails becomes a finding too."""
    from importlib.metadata import entry_points

    for found in entry_points(group=_GROUP):
        try:
            for finding in found.load()(path):
                yield Finding(*finding)
        except Exception as error:  # any package may raise anything; the other findings must still be shown
            yield Finding(found.name, "note", f"this check failed: {error!r}")
