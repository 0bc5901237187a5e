"""``sej stat``, ``top`` and ``doctor``: the state of journals, once, live, and with what to do about it.

Other packages add checks through the entry-point group ``sej.doctor``: ``name = "module:function"``. The function takes
the path from the command line (a ``pathlib.Path``) and yields :class:`sej.cli.shared.findings.Finding` objects, or
tuples with the same fields. Such a check may remove stale files of its own package, and then reports that.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sej.cli.shared.command import (
    CHROME_LINES,
    DURATION,
    JSON,
    PATH,
    Exit,
    print_row,
    progress_bar,
    refuse,
    screen,
    wait,
)
from sej.cli.shared.findings import Finding, contributed_findings, findings_of, package_findings
from sej.cli.shared.options import good_end_of
from sej.cli.shared.readers import (
    SORTS,
    Sample,
    Watched,
    holder_of,
    journals_below,
    lag_s,
    queues_of,
    readers_of,
    stuck,
)
from sej.cli.shared.text import coloured, human_duration, human_size, iso_time, shown
from sej.codec.format import NO_TIMESTAMP
from sej.errors import CorruptionError, NotAJournalError, SejError
from sej.imports import PACKAGES
from sej.journal.directory import Directory, read_gaps
from sej.journal.retention import at_risk
from sej.journal.tier import Tier
from sej.journal.view import Journal
from sej.system.disk import OS

if TYPE_CHECKING:
    from rich.table import Table

_METRICS: Final = (
    ("", "sej_first_offset", "gauge", "Offset of the first message that still exists.", "first_offset"),
    ("", "sej_end_offset", "counter", "Offset of the next message to be appended.", "end_offset"),
    ("", "sej_segments", "gauge", "Segments of the journal.", "segments"),
    ("", "sej_bytes", "gauge", "Bytes of all segments.", "bytes"),
    ("", "sej_disk_free_bytes", "gauge", "Free bytes of the journal's disk.", "free_bytes"),
    ("", "sej_writer_running", "gauge", "1 while a writer holds the journal.", "writer_running"),
    ("", "sej_last_message_timestamp_seconds", "gauge", "Time of the last message, if it has one.", "last_s"),
    ("reader", "sej_reader_offset", "gauge", "Next message that a reader wants.", "offset"),
    ("reader", "sej_reader_behind", "gauge", "Messages that a reader has not read yet.", "behind"),
    ("reader", "sej_reader_lag_seconds", "gauge", "Age of the message that a reader wants next.", "lag_s"),
    ("reader", "sej_reader_running", "gauge", "1 while a process runs this reader.", "running"),
    ("reader", "sej_reader_idle_seconds", "gauge", "Seconds since a reader's last commit.", "idle_s"),
    ("queue", "sej_queue_ready", "gauge", "Items that a worker may take.", "ready"),
    ("queue", "sej_queue_delayed", "gauge", "Items that wait for their time.", "delayed"),
    ("queue", "sej_queue_leased", "gauge", "Items that workers hold.", "leased"),
    ("queue", "sej_queue_dead", "gauge", "Dead letters.", "dead"),
    ("queue", "sej_queue_oldest_seconds", "gauge", "Seconds since the oldest ready item was put.", "oldest_s"),
    ("queue", "sej_queue_paused", "gauge", "1 while a queue is paused.", "paused"),
    ("queue", "sej_queue_kinds_at_limit", "gauge", "Kinds of items that wait because of a limit.", "kinds_at_limit"),
    ("queue", "sej_queue_limit", "gauge", "Items of one kind that workers may hold; 0: no limit.", "most"),
    ("schedule", "sej_schedule_paused", "gauge", "1 while a schedule is paused.", "paused"),
    ("schedule", "sej_schedule_next_timestamp_seconds", "gauge", "Next time, if it is not paused.", "next_s"),
    ("problem", "sej_problem", "gauge", "1 while sej doctor --quick finds this problem.", "found"),
)
"""Label of the part of a journal that has it, name, kind, help, and the field of the row."""


@click.command
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=PATH)
@JSON
@click.option(
    "--prometheus", is_flag=True, help="In the Prometheus text format, for the node exporter's textfile collector."
)
@click.option("--health", is_flag=True, help="Print only problems of readers; exit code 1 if there are any.")
@click.option("--stuck-after", type=DURATION, default="60s", show_default=True, help="How long a commit may take.")
def stat(directories: tuple[Path, ...], json: bool, prometheus: bool, health: bool, stuck_after: float) -> None:
    """Print the state of journals: offsets, bytes, times, the writer, the lag of each reader, the queues.

    DIR is a SEJ directory, or a directory of them (a sharded journal, a hub).

    A reader is stuck if it runs and has messages to read, but committed nothing for --stuck-after, while its next
    message is older than that. A reader whose kept offset cannot be right is stuck too. --health also reports a reader
    that has used four fifths of a limit for readers (sej clean --reader-max-age), before it loses messages.

    Example: sej stat --health orders || systemctl restart billing
    """
    paths = [path for directory in directories for path in journals_below(directory) or [str(directory)]]
    if prometheus:
        for line in _prometheus([_metrics_row(path) for path in paths]):
            click.echo(line)
        return
    if health:
        wrong = [line for path in paths for line in _stuck(path, stuck_after)]
        for line in wrong:
            click.echo(shown(line))
        if wrong:
            raise SystemExit(Exit.WRONG)
        return
    for row in [journal_row(Journal(path)) for path in paths]:
        print_row(row, _page(row), json)


def journal_row(journal: Journal) -> dict[str, Any]:
    """Return what ``sej stat --json`` prints of a journal."""
    segments = journal.segments
    first, end = journal.first_offset, good_end_of(journal)
    gaps = read_gaps(Directory(journal.path, OS))
    lost = sum(max(min(gap.stop, end) - max(gap.start, first), 0) for gap in gaps)
    tier = Tier.of(Directory(journal.path, OS))
    try:
        last = next(iter(journal.tail(1)), None)
    except CorruptionError:  # `sej verify` reports it; this command is about sizes and readers
        last = None
    return {
        "path": journal.path,
        "id": None if journal.id is None else journal.id.hex(),
        "first_offset": first,
        "end_offset": end,
        "messages": end - first - lost,
        "lost": lost,
        "segments": len(segments),
        "bytes": sum(segment.size for segment in segments),
        "tier": tier and {"address": tier.address, "objects": len(tier.objects), "bytes": tier.size},
        "last_timestamp_ns": None if last is None or last.timestamp == NO_TIMESTAMP else last.timestamp,
        "last_time": None if last is None else iso_time(last.timestamp),
        "changed": iso_time(segments[-1].mtime_ns) if segments else None,
        "writer": (writer := holder_of(Directory(journal.path, OS).at("jnl.lck"))),
        "writer_running": writer is not None,
        "free_bytes": OS.free_bytes(journal.path),
        "readers": [
            one._asdict() | {"running": one.holder is not None, "lag_s": lag_s(journal.path, one, first)}
            for one in readers_of(journal)
        ],
        "queues": [one.row for one in queues_of(journal.path)],
    }


def _page(row: dict[str, Any]) -> str:
    lost = f", {row['lost']} lost" if row["lost"] else ""
    lines = [
        row["path"],
        f"  messages  {row['messages']}, first offset {row['first_offset']}, next offset {row['end_offset']}{lost}",
        f"  segments  {row['segments']}, {human_size(row['bytes'])}",
        *(
            f"  tier      {one['objects']}, {human_size(one['bytes'])}, in {one['address']}"
            for one in [row["tier"]]
            if one
        ),
        f"  last      {row['last_time'] or '-'}",
        f"  writer    {row['writer'] or '-'}",
    ]
    for reader in row["readers"]:
        place = "never committed" if reader["offset"] is None else f"at {reader['offset']}"
        runs = reader["holder"] or "not running"
        lag = "" if reader["lag_s"] is None else f" for {human_duration(reader['lag_s'])}"
        lines.append(f"  reader    {reader['name']} {place}, {reader['behind']} behind{lag}, {runs}")
        if reader["error"]:
            lines.append(f"            {reader['error']}")
    for queue in row["queues"]:
        counts = ", ".join(f"{queue[state]} {state}" for state in ("ready", "delayed", "leased", "dead"))
        oldest = "" if queue["oldest_s"] is None else f", the oldest ready for {human_duration(queue['oldest_s'])}"
        paused = ", paused" if queue["paused"] else ""
        lines.append(f"  queue     {queue['name']}: {counts}{oldest}{paused}")
    return "\n".join(map(shown, lines))


def _metrics_row(path: str) -> dict[str, Any]:
    """Return a journal's row with its problems; without the rest if it cannot be read, which is a problem."""
    wrong = {one.what for one in findings_of(path, quick=True) if one.level == "problem"}
    row: dict[str, Any] = {"path": path, "problems": [{"name": what, "found": 1} for what in sorted(wrong)]}
    try:
        row |= journal_row(Journal(path))
        for queue in row["queues"]:
            queue["most"] = queue["limit"] and queue["limit"]["concurrency"]
        row["schedules"] = [
            one | {"queue": queue["name"], "next_s": one["next_at_ns"] and one["next_at_ns"] / 1e9}
            for queue in row["queues"]
            for one in queue["schedules"]
        ]
        return row | {"last_s": row["last_timestamp_ns"] and row["last_timestamp_ns"] / 1e9}
    except (SejError, OSError):
        return row


def _prometheus(rows: list[dict[str, Any]]) -> Iterator[str]:
    for part, name, kind, text, field in _METRICS:
        yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
        for row in rows:
            for one in row.get(f"{part}s", ()) if part else [row]:
                if part not in ("", "schedule") or one.get(field) is not None:
                    label = f',{part}="{_label(one["name"])}"' if part else ""
                    label += f',queue="{_label(one["queue"])}"' if part == "schedule" else ""
                    yield f'{name}{{journal="{_label(row["path"])}"{label}}} {+(one[field] or 0)}'


def _stuck(path: str, stuck_after: float) -> Iterator[str]:
    journal, risks = Journal(path), at_risk(Directory(path, OS), time.time_ns())
    for reader in readers_of(journal):
        wrong = reader.error or stuck(path, reader, stuck_after, journal.first_offset)
        for text in filter(None, (wrong, risks.get(reader.name))):
            yield f"{path}: reader {reader.name!r}: {text}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_NARROW: Final = 80
"""In fewer columns, only journal, next offset and readers are shown."""


@click.command
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=PATH)
@JSON
@click.option("--once", is_flag=True, help="Print one sample without rates.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="Time between two samples, as in 5s.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="name", show_default=True, help="The column to sort by."
)
def top(paths: tuple[Path, ...], json: bool, once: bool, interval: float, sort: str) -> None:
    """Watch journals: messages and bytes a second, writers, and how far behind the readers are.

    A PATH is a SEJ directory, or a directory of them (a sharded journal, a hub); default: the current directory.
    Journals that are created later are found too. A terminal shows a table, until q or an interrupt. Otherwise each
    sample prints one line for each journal: time, path, next offset, messages a second, bytes, bytes a second, the
    writer's pid, and each reader as NAME:N, which is N messages behind.

    Example: sej top --sort lag data
    """
    watched = Watched(paths or (Path(),))
    table = not json and sys.stdout.isatty() and not once
    with screen() if table else nullcontext() as live:
        while True:
            rows = sorted(watched.look(), key=SORTS[sort])
            if once and not rows:
                refuse(f"there is no journal in {', '.join(map(str, watched.paths))}")
            if live is not None:
                live.update(_table(rows, live.console.height - CHROME_LINES, live.console.width), refresh=True)
            else:
                for row in rows:
                    print_row(_object(row), _line(row), json)
                sys.stdout.flush()
            if once or not wait(interval):
                return


def _object(row: Sample) -> dict[str, Any]:
    readers = [
        {"name": one.name, "offset": one.offset, "behind": one.behind, "rate": rate, "running": one.holder is not None}
        for one, rate in row.readers
    ]
    queues = [queue.row for queue in row.queues]
    return row._asdict() | {"time": iso_time(row.time_ns), "readers": readers, "queues": queues}


def _line(row: Sample) -> str:
    if row.error is not None:
        return f"{iso_time(row.time_ns)}\t{shown(row.path)}\t{shown(row.error)}"
    readers = " ".join(f"{one.name}:{one.behind}" for one, _ in row.readers) or "-"
    rate, byte_rate = ("-" if one is None else f"{one:.1f}" for one in (row.rate, row.byte_rate))
    cells = (row.end_offset, rate, row.bytes, byte_rate, _pid(row.writer), readers)
    return "\t".join(shown(str(cell)) for cell in (iso_time(row.time_ns), row.path, *cells))


def _table(rows: list[Sample], lines: int, width: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    hidden = f"; {len(rows) - lines} more: a taller terminal shows them" if len(rows) > lines else ""
    total = f"{_rate(sum(row.rate or 0 for row in rows))} messages/s, {_bytes(sum(row.bytes for row in rows))}"
    root = os.path.commonpath([os.path.dirname(os.path.abspath(row.path)) for row in rows]) if rows else ""
    table = Table(caption=f"{len(rows)} journals, {total}{hidden}; q ends", expand=True, title=escape(shown(root)))
    table.add_column("journal", overflow="ellipsis", no_wrap=True, ratio=3)
    figures = ("next offset",) if width < _NARROW else ("next offset", "messages/s", "size", "size/s", "last", "writer")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("readers: behind, messages/s", overflow="ellipsis", no_wrap=True, ratio=4)
    for row in rows[:lines]:
        name = escape(shown(os.path.relpath(row.path, root)))
        if row.error is not None:
            table.add_row(name, *[""] * len(figures), f"[red]{escape(shown(row.error))}")
            continue
        last = "" if row.idle_s is None else f"{human_duration(row.idle_s)} ago"
        sizes = [_bytes(row.bytes), _bytes(row.byte_rate)]
        cells = [f"{row.end_offset:,}", _rate(row.rate), *sizes, last, _pid(row.writer)]
        table.add_row(name, *cells[: len(figures)], _readers(row))
    return table


def _readers(row: Sample) -> str:
    """Format the readers, the slowest first: green runs at the end, yellow runs behind, red has an error."""
    from rich.markup import escape

    cells = []
    for reader, rate in sorted(row.readers, key=lambda one: -one[0].behind):
        colour = "red" if reader.error else "default" if not reader.holder else "yellow" if reader.behind else "green"
        cells.append(f"[{colour}]{escape(shown(reader.name))} {reader.behind:,}[/] ({_rate(rate)})")
    return "  ".join(cells)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _bytes(size: float | None) -> str:
    return "-" if size is None else human_size(size)


def _pid(holder: str | None) -> str:
    return "-" if holder is None else holder.split(" ")[0].removeprefix("pid=")


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
    paths = [] if path is None else journals_below(path)
    contributed = [] if path is None else list(contributed_findings(path))
    if path is not None and not paths and not contributed:
        raise NotAJournalError("no journal is here; expected a SEJ directory, a sharded journal or a hub", path=path)
    contributed += package_findings()
    if path is None and not contributed:
        contributed.append(Finding("packages", "ok", f"{', '.join(PACKAGES)} are those of sej-journals"))
    alone = path is None or paths == [str(path)]
    levels = Counter[str]()
    well = 0
    for journal in paths:
        with progress_bar(f"reading {journal}", size=True) as show:
            found = findings_of(journal, quick=quick, progress=show)
        well += all(finding.level == "ok" for finding in found)
        shown = found if alone or json else [finding for finding in found if finding.level != "ok"]
        _show_findings(shown, journal, json=json, named=not alone)
        levels.update(finding.level for finding in found)
    _show_findings(contributed, str(path or ""), json=json, named=False)
    levels.update(finding.level for finding in contributed)
    if not (alone or json):
        click.echo(f"{_level('ok')}  {well} of {len(paths)} journals")
    if levels["problem"]:
        raise SystemExit(Exit.WRONG)


def _show_findings(found: list[Finding], journal: str, *, json: bool, named: bool) -> None:
    for finding in found:
        text = f"{f'{journal}: ' if named else ''}{finding.what}: {finding.found}"
        row = {"journal": journal, **finding._asdict()} | {"values": dict(finding.values)}
        print_row(row, f"{_level(finding.level)}  {shown(text)}", json)
        if finding.do and not json:
            click.echo(f"         -> {shown(finding.do)}")


def _level(level: str) -> str:
    return coloured(f"{level:7}", _COLOURS[level])
