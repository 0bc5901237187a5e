"""``sej stat``: the state of journals, for people, programs, Prometheus and health checks."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.options import DURATION, JSON, good_end_of
from sej.cli.shared.output import shown
from sej.cli.shared.parameters import PATH
from sej.cli.shared.units import human_duration, human_size, iso_time
from sej.cli.state.readers import Reader, holder_of, journals_below, lag_s, readers_of, stuck
from sej.codec.format import NO_TIMESTAMP
from sej.errors import CorruptionError, SejError
from sej.journal.directory import Directory
from sej.journal.gaps import read_gaps
from sej.journal.view import Journal
from sej.system.disk import OS

_METRICS: Final = (
    ("sej_first_offset", "gauge", "Offset of the first message that still exists.", "first_offset"),
    ("sej_end_offset", "counter", "Offset of the next message to be appended.", "end_offset"),
    ("sej_segments", "gauge", "Segments of the journal.", "segments"),
    ("sej_bytes", "gauge", "Bytes of all segments.", "bytes"),
    ("sej_writer_running", "gauge", "1 while a writer holds the journal.", "writer_running"),
)
_READER_METRICS: Final = (
    ("sej_reader_offset", "gauge", "Next message that a reader wants.", "offset"),
    ("sej_reader_behind", "gauge", "Messages that a reader has not read yet.", "behind"),
    ("sej_reader_lag_seconds", "gauge", "Age of the message that a reader wants next.", "lag_s"),
    ("sej_reader_running", "gauge", "1 while a process runs this reader.", "running"),
    ("sej_reader_idle_seconds", "gauge", "Seconds since a reader's last commit.", "idle_s"),
)


@click.command
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=PATH)
@JSON
@click.option(
    "--prometheus", is_flag=True, help="In the Prometheus text format, for the node exporter's textfile collector."
)
@click.option("--health", is_flag=True, help="Print only problems; exit code 1 if a running reader is stuck.")
@click.option("--stuck-after", type=DURATION, default="60s", show_default=True, help="How long a commit may take.")
def stat(directories: tuple[Path, ...], json: bool, prometheus: bool, health: bool, stuck_after: float) -> None:
    """Print the state of journals: offsets, bytes, times, the writer, the lag of each reader.

    DIR is a SEJ directory, or a directory of them (a sharded journal, a hub).

    A reader is stuck if it runs and has messages to read, but committed nothing for --stuck-after, while its next
    message is older than that. A reader whose kept offset cannot be right is stuck too.

    Example: sej stat --health orders || systemctl restart billing
    """
    paths = [path for directory in directories for path in journals_below(directory) or [str(directory)]]
    rows = [journal_row(Journal(path)) for path in paths]
    if prometheus:
        for line in _prometheus(rows):
            click.echo(line)
    elif health:
        stuck = [line for row in rows for line in _stuck(row, stuck_after)]
        for line in stuck:
            click.echo(shown(line))
        if stuck:
            raise SystemExit(Exit.WRONG)
    else:
        for row in rows:
            click.echo(jsonlib.dumps(row) if json else _page(row))


def journal_row(journal: Journal) -> dict[str, Any]:
    """Return what ``sej stat --json`` prints of a journal."""
    segments = journal.segments
    first, end = journal.first_offset, good_end_of(journal)
    gaps = read_gaps(Directory(journal.path, OS))
    lost = sum(max(min(gap.stop, end) - max(gap.start, first), 0) for gap in gaps)
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
        "last_timestamp_ns": None if last is None or last.timestamp == NO_TIMESTAMP else last.timestamp,
        "last_time": None if last is None else iso_time(last.timestamp),
        "changed": iso_time(segments[-1].mtime_ns) if segments else None,
        "writer": (writer := holder_of(Directory(journal.path, OS).at("jnl.lck"))),
        "writer_running": writer is not None,
        "readers": [_reader_row(journal, reader) for reader in readers_of(journal)],
    }


def _reader_row(journal: Journal, reader: Reader) -> dict[str, Any]:
    try:
        lag = lag_s(journal.path, reader, journal.first_offset)
    except SejError:  # the journal is damaged there; `sej verify` reports where
        lag = None
    return reader._asdict() | {"running": reader.holder is not None, "lag_s": lag}


def _page(row: dict[str, Any]) -> str:
    lost = f", {row['lost']} lost" if row["lost"] else ""
    lines = [
        row["path"],
        f"  messages  {row['messages']}, first offset {row['first_offset']}, next offset {row['end_offset']}{lost}",
        f"  segments  {row['segments']}, {human_size(row['bytes'])}",
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
    return "\n".join(map(shown, lines))


def _prometheus(rows: list[dict[str, Any]]) -> Iterator[str]:
    for name, kind, text, field in _METRICS:
        yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
        for row in rows:
            yield f'{name}{{journal="{_label(row["path"])}"}} {int(row[field])}'
    name = "sej_last_message_timestamp_seconds"
    yield from (f"# HELP {name} Time of the last message, if it has one.", f"# TYPE {name} gauge")
    for row in rows:
        if row["last_timestamp_ns"] is not None:
            yield f'{name}{{journal="{_label(row["path"])}"}} {row["last_timestamp_ns"] / 1e9:.9f}'
    for name, kind, text, field in _READER_METRICS:
        yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
        for row in rows:
            for reader in row["readers"]:
                labels = f'journal="{_label(row["path"])}",reader="{_label(reader["name"])}"'
                yield f"{name}{{{labels}}} {float(reader[field] or 0):g}"


def _stuck(row: dict[str, Any], stuck_after: float) -> Iterator[str]:
    for found in row["readers"]:
        reader = Reader(**{name: found[name] for name in Reader._fields})
        wrong = reader.error or stuck(row["path"], reader, stuck_after, row["first_offset"])
        if wrong is not None:
            yield f"{row['path']}: reader {reader.name!r}: {wrong}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
