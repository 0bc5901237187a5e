"""The pages: what each shows, and what their functions share: the context, the view that they return, the templates.

Every value in a template is escaped; a name that a template misspells is an error.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hub.naming import parse_source
from hub.page.sampler import STUCK_S, Place, Round, Sampler
from sej.cli.shared.options import good_end_of
from sej.cli.shared.readers import SORTS, Sample
from sej.cli.shared.text import Moment, as_text, human_duration, human_size, iso_time, parse_place
from sej.cli.stat import journal_row
from sej.codec.format import NO_TIMESTAMP
from sej.errors import JournalNotFoundError, SejError
from sej.journal.directory import Directory
from sej.journal.view import Journal
from sej.message import Message
from sej.queue.interface.values import QueuedItem
from sej.queue.listing import QueueLook
from sej.reading.scanner import Scanner
from sej.system.disk import OS
from textqueue.checker import check, details
from textqueue.format.parser import CONTROLS, MessageStatus
from textqueue.queue import TextQueue

if TYPE_CHECKING:
    from hub.wire.server import Server

LIVE_S: Final = 2.0
"""How often a browser asks for a page of one journal, queue or file."""
_MARKS: Final = {"ok": "✓", "note": "!", "problem": "✗"}


def address(text: object) -> str:
    """Return a text as a part of an address; a file name may have bytes that are not UTF-8."""
    return quote(str(text), safe="", errors="surrogateescape")


def when(timestamp: int | None) -> Markup:
    """Return a time element; the script shows it in the viewer's zone.

    Example:
        >>> when(1_500_000_000_000_000_000)
        Markup('<time datetime="2017-07-14T02:40:00.000000000Z">2017-07-14 02:40:00 UTC</time>')
    """
    if timestamp is None or timestamp == NO_TIMESTAMP:
        return Markup("–")
    text = iso_time(timestamp) or ""
    shown = datetime.fromtimestamp(timestamp // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(text, shown)


def _path(text: str) -> Markup:
    """Return a path with its directory in an element of its own; a narrow page breaks it after a slash."""
    *folders, name = text.split("/")
    return Markup('<span class="dir">{}</span>{}').format(Markup("/<wbr>").join([*folders, ""]), name)


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{human_duration(seconds)} ago"


def templates() -> Environment:
    """Load and compile the templates of this package."""
    found = Environment(
        loader=PackageLoader("hub.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        size=human_size,
        duration=human_duration,
        age=_age,
        rate=_rate,
        when=when,
        number="{:,}".format,
        path=_path,
    )
    found.globals.update(
        mark=_MARKS.get, address=address, queues_of=lambda path: sorted(Directory(path, OS).queue_names())
    )
    for name in found.list_templates():
        found.get_template(name)  # compiled now, so that the first page is as fast as the others
    return found


class MissingError(JournalNotFoundError):
    """The page has no such journal, queue, message or file."""


class Context(NamedTuple):
    """What all pages read from.

    Attributes:
        places: the paths of the command line.
        sampler: the samples.
        allow_changes: whether the page offers changes.
        hub: the server of the hub that serves this page, or None.
    """

    places: Sequence[Place]
    sampler: Sampler
    allow_changes: bool
    hub: Server | None = None

    def links(self) -> list[tuple[str, str, str]]:
        """Return what the navigation lists: kind, name and address."""
        page = {"text queue": "/text-queue?path="}
        parts = sorted(part for place in self.places for part in place.parts())
        return [(kind, name, page.get(kind, "/?in=") + address(name)) for kind, name in parts]

    def require_journal(self, path: str) -> str:
        """Return the path of a journal that the page may show.

        Raises:
            MissingError: it may not, or the journal does not exist.
        """
        if path not in self.sampler.round.samples or not self.sampler.may_show(path):
            raise MissingError("this page has no such journal", path=path or None)
        return path


def trail_of(path: str) -> list[tuple[str, str]]:
    """Return the pages above those of a journal: address and name."""
    return [("/", "Overview"), (journal_address(path), path)]


def journal_address(path: str) -> str:
    """Return the address of a journal's page."""
    return f"/journal?path={address(path)}"


class View(NamedTuple):
    """One page at one moment.

    Attributes:
        template: its template.
        title: the title.
        values: what the template needs in addition.
        trail: the pages above it: address and name.
        live: seconds after which a browser asks for it again and shows the elements that changed; 0: it does not.
    """

    template: str
    title: str
    values: Mapping[str, Any]
    trail: Sequence[tuple[str, str]] = ()
    live: float = 0


PageFunction = Callable[[Context, Mapping[str, str]], View]
"""A function of the context and of the query of the address."""


def number_in(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a number of the query, or the default if it is missing.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number, got {text[:80]!r}")
    return int(text)


_ROWS: Final = 200
"""Journals on one page."""
_SORT_NAMES: Final = {"name": "name", "rate": "messages/s", "lag": "lag", "dead": "dead letters", "bytes": "size"}


def overview(context: Context, query: Mapping[str, str]) -> View:
    """Show journals, those with problems in a list of their own; with ``in``, the journals of one place.

    The path of a journal in a hub or in a directory begins with the name of the place, and that of a shard too.
    """
    taken = context.sampler.round
    order, group, wanted = query.get("sort", "name"), query.get("in", ""), query.get("filter", "")
    if order not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, got {order[:80]!r}")
    kind = next((kind for kind, name, _ in context.links() if name == group), None)
    if group and kind is None:
        raise MissingError("this page has no such hub, sharded journal or directory", path=group)
    all_samples = taken.samples.values()
    samples = [one for one in all_samples if group in ("", os.path.dirname(one.path), one.path.rpartition(".")[0])]
    found = sorted((one for one in samples if wanted.lower() in one.path.lower()), key=SORTS[order])
    first = number_in(query, "first", 0)
    shown = found[first : first + _ROWS]
    folders = {os.path.dirname(one.path) or "." for one in samples if one.error is None}
    shards = 1 << int(group.rpartition(".")[2]) if kind == "sharded journal" else 0
    sources = {one.path: parse_source(os.path.basename(one.path)) for one in samples if kind == "hub"}
    values: dict[str, Any] = {
        "group": group,
        "kind": kind,
        "shards": shards,
        "samples": samples,
        "clients": len({source.client for source in sources.values() if source}),
        "sources": sources,
        "counts": context.hub.counts() if kind == "hub" and context.hub is not None else None,
        "free": min(map(OS.free_bytes, folders), default=None),
        "queues": any(one.queues for one in samples),
        "problems": sorted((one.path, taken.problems[one.path]) for one in samples if one.path in taken.problems),
        "readers": _readers(samples) if group else None,
        "rows": [_row(taken, one) for one in shown],
        "sorts": _SORT_NAMES,
        "sort": order,
        "filter": wanted,
        "first": first,
        "last": first + len(shown),
        "found": len(found),
        "page_rows": _ROWS,
    }
    title = f"{kind.capitalize()} {group}" if kind else "Overview"
    return View("overview.html", title, values, [("/", "Overview")] if kind else [], live=context.sampler.interval_s)


def _readers(samples: list[Sample]) -> list[dict[str, Any]]:
    """Return each reader over all journals: its name, messages behind, journals behind, and in how many it runs."""
    found = defaultdict(list)
    for reader in (reader for sample in samples for reader, _ in sample.readers):
        found[reader.name].append(reader)
    return [
        {
            "name": name,
            "behind": sum(one.behind for one in readers),
            "journals_behind": sum(one.behind > 0 for one in readers),
            "running": sum(one.holder is not None for one in readers),
        }
        for name, readers in sorted(found.items())
    ]


def _row(taken: Round, sample: Sample) -> dict[str, Any]:
    """Return what the row of a journal shows; it was changed in a whole second, or never, or cannot be read."""
    changed = None if sample.idle_s is None else (sample.time_ns - int(sample.idle_s * 1e9)) // 10**9 * 10**9
    slowest = max((reader for reader, _ in sample.readers), key=lambda reader: reader.behind, default=None)
    return {
        "sample": sample,
        "changed": changed,
        "problems": taken.problems.get(sample.path, ()),
        "checked": sample.path in taken.checked,
        "slowest": slowest,
    }


_SEGMENTS: Final = 20
_NEWEST: Final = 20
_PAGE: Final = 50
_BATCH: Final = 1024
_SEARCH_S: Final = 0.12
PREVIEW_BYTES: Final = 160
"""Bytes of a value in a table."""
_VIEW_BYTES: Final = 1 << 16
_HEX_BYTES: Final = 1 << 12
_HEX_LINE: Final = 16
_ITEMS: Final = 50
_NEXT: Final = 20
_SHOWN: Final = 1000
_STATUS_MARKS: Final = {control.status: chr(control.byte) for control in CONTROLS if control.status is not None}
_VALUE_CHARS: Final = 2000
_LEVELS: Final = ("problem", "note", "ok")


def journal(context: Context, query: Mapping[str, str]) -> View:
    """Show a journal: its state, readers, segments and newest messages."""
    path = context.require_journal(query.get("path", ""))
    there = Journal(path)
    row = journal_row(there)
    segments = there.segments
    taken = context.sampler.round
    problems = taken.problems.get(path, [])
    values: dict[str, Any] = {
        "path": path,
        "row": row,
        "problems": [(path, problems)] if problems else [],
        "sample": taken.samples.get(path),
        "changes": context.allow_changes,
        "segments": segments[-_SEGMENTS:][::-1],
        "count": len(segments),
        "messages": _newest(there, row["end_offset"]),
    }
    return View("journal.html", path, values, [("/", "Overview")], live=LIVE_S)


def _newest(there: Journal, end: int) -> list[dict[str, Any]]:
    """Return the newest messages before the end as rows, newest first.

    If one cannot be read, the rows end before it; the state of the journal shows why.
    """
    following = max(there.first_offset, end - _NEWEST)
    rows: list[dict[str, Any]] = []
    try:
        with Scanner(there.path, following) as scanner:
            while following < end and (batch := scanner.read(end - following)):  # one of large messages is short
                rows += map(cells, batch)
                following = batch[-1].offset + 1
    except SejError:
        pass
    return rows[::-1]


def messages(context: Context, query: Mapping[str, str]) -> View:
    """Show messages from an offset or a time on; with a key: only those that have it.

    A search reads for a limited time and ends with a link to continue.
    """
    path = context.require_journal(query.get("path", ""))
    there = Journal(path)
    first = there.first_offset
    place = query.get("at", "").strip()
    at: int | Moment = parse_place(place, time.time_ns()) if place else first
    offset = max(there.find_time(at.timestamp) if isinstance(at, Moment) else at, first)
    key = query.get("key", "")
    wanted = key.encode("utf-8", "surrogateescape")
    found: list[Message] = []
    following = offset
    until = time.monotonic() + _SEARCH_S
    ended = False
    if offset <= context.sampler.round.samples[path].end_offset:
        with Scanner(path, offset) as scanner:
            while len(found) < _PAGE and not ended and time.monotonic() <= until:
                batch = scanner.read(_BATCH)
                ended = not batch
                for one in batch:
                    following = one.offset + 1
                    if not key or one.key == wanted:
                        found.append(one)
                        if len(found) == _PAGE:
                            break
    values: dict[str, Any] = {
        "path": path,
        "at": place,
        "key": key,
        "from": offset,
        "messages": [cells(one) for one in found],
        "following": None if ended else following,
        "before": max(first, offset - _PAGE) if offset > first and not key else None,
        "read": following - offset,
    }
    return View("messages.html", f"Messages of {path}", values, trail_of(path))


def message_at(context: Context, query: Mapping[str, str]) -> tuple[str, Message]:
    """Return a journal and one of its messages.

    Raises:
        MissingError: the message does not exist.
    """
    path = context.require_journal(query.get("path", ""))
    offset = number_in(query, "offset", 0)
    found: list[Message] = []
    if offset < good_end_of(Journal(path)):
        with Scanner(path, offset) as scanner:
            found = scanner.read(1)
    if not found or found[0].offset != offset:
        raise MissingError(f"message {offset} does not exist", path=path)
    return path, found[0]


def message(context: Context, query: Mapping[str, str]) -> View:
    """Show one message as text, as JSON if it is JSON, and in hexadecimal."""
    path, found = message_at(context, query)
    there = Journal(path)
    value = found.value
    values = {
        "path": path,
        "cells": cells(found, _VIEW_BYTES),
        "message": found,
        "shown": min(len(value), _VIEW_BYTES),
        "text": _text(value[:_VIEW_BYTES]),
        "json": _json(value),
        "hex": list(_hex_lines(value[:_HEX_BYTES])),
        "hex_shown": min(len(value), _HEX_BYTES),
        "first": there.first_offset,
        "end": good_end_of(there),
    }
    return View("message.html", f"Message {found.offset} of {path}", values, trail_of(path))


def damage(context: Context, query: Mapping[str, str]) -> View:
    """Show what ``sej doctor`` finds in a journal, and what to do about it."""
    path = context.require_journal(query.get("path", ""))
    found, full = context.sampler.check(path, full=query.get("full") == "1")
    problems = context.sampler.round.problems.get(path)
    found = sorted(found, key=lambda finding: _LEVELS.index(finding.level))
    values = {"path": path, "findings": found, "full": full, "problems": [(path, problems)] if problems else []}
    return View("damage.html", f"State of {path}", values, trail_of(path))


def cells(found: Message, value_bytes: int = PREVIEW_BYTES) -> dict[str, Any]:
    """Return a message as the texts of a row, as ``sej scan`` prints them; a long value is cut."""
    cut = Message(found.offset, found.timestamp, found.type, found.key, found.value[:value_bytes])
    offset, _, kind, key, value = as_text(cut).split("\t")
    return {
        "offset": offset,
        "timestamp": found.timestamp,
        "type": kind,
        "key": key,
        "value": value,
        "size": len(found.value),
        "cut": len(found.value) > value_bytes,
    }


def _json(value: bytes) -> str | None:
    """Return a value as indented JSON; None if it is not an object or a list, or if it is too large."""
    if len(value) > _VIEW_BYTES or not re.match(rb"\s*[\[{]", value):
        return None
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _hex_lines(value: bytes) -> Iterable[tuple[str, str, str]]:
    """Yield position, bytes and printable characters of each line."""
    for at in range(0, len(value), _HEX_LINE):
        line = value[at : at + _HEX_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{at:08x}", line.hex(" "), text


def queue(context: Context, query: Mapping[str, str]) -> View:
    """Show a queue. It is looked at without a lock, and no item is taken."""
    path, name = context.require_journal(query.get("path", "")), query.get("name", "queue")
    look = QueueLook(path, name)
    counts, schedules, limit, at_limit = look.summary()
    oldest = look.items("ready", limit=1)
    values: dict[str, Any] = {
        "path": path,
        "name": name,
        "changes": context.allow_changes,
        "paused": bool(counts.pop("paused", False)),
        "counts": counts,
        "schedules": [one._replace(value=_text(one.value[:PREVIEW_BYTES])) for one in schedules],
        "limit": limit,
        "at_limit": at_limit,
        "late_ns": time.time_ns() - int(STUCK_S * 1e9),
        "oldest": oldest[0].message.timestamp if oldest else None,
        "lists": [("ready", "Next to be taken", [_item(one) for one in look.peek(_NEXT)])],
    }
    for state in ("leased", "delayed", "dead"):
        items = [_item(one) for one in look.items(state, limit=_ITEMS)] if counts[state] else []
        values["lists"].append((state, state.capitalize(), items))
    return View(
        "queue.html",
        f"{'Queue' if name == 'queue' else f'Queue {name}'} of {path}",
        values,
        trail_of(path),
        live=LIVE_S,
    )


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _item(item: QueuedItem) -> dict[str, Any]:
    return cells(item.message) | item._asdict()


def text_queue(context: Context, query: Mapping[str, str]) -> View:
    """Show the first messages of a file, and probable typing mistakes."""
    path = query.get("path", "")
    if ("text queue", path) not in (part for place in context.places for part in place.parts()):
        raise MissingError("this page has no such text queue", path=path or None)
    with TextQueue(path) as queue:
        found = list(islice(details(queue.messages(frozenset(MessageStatus)), now_ns=time.time_ns()), _SHOWN + 1))
    counts = Counter(one.message.status.name for one in found)
    entries = [
        {
            "line": one.line,
            "mark": _STATUS_MARKS[one.message.status],
            "status": one.message.status.name,
            "text": one.message.value_bytes.decode("utf-8", "replace")[:_VALUE_CHARS],
            "variables": [text.encode("utf-8", "replace").decode() for text in one.message.get_variables()],
            "holder": one.holder,
        }
        for one in found[:_SHOWN]
    ]
    values = {
        "path": path,
        "counts": [(status.name, counts[status.name]) for status in _STATUS_MARKS],
        "claimed": sum(one.holder is not None for one in found),
        "more": len(found) > _SHOWN,
        "shown": _SHOWN,
        "mistakes": check(path)[:_SHOWN],
        "entries": entries,
    }
    return View("text_queue.html", f"Text queue {path}", values, [("/", "Overview")], live=LIVE_S)
