"""A journal: its state, segments and readers, its messages and work queues, what is wrong with it; and a text queue."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from hub.page.sampler import STUCK_S
from hub.page.views import LIVE_S, Context, MissingError, View, number_in, trail_of
from sej.cli.shared.options import good_end_of
from sej.cli.shared.output import as_text
from sej.cli.shared.units import Moment, parse_place
from sej.cli.stat import journal_row
from sej.errors import SejError
from sej.journal.view import Journal
from sej.message import Message
from sej.queue.interface.values import QueuedItem
from sej.queue.listing import QueueLook
from sej.reading.scanner import Scanner
from textqueue.format.grammar import CONTROLS, MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import check
from textqueue.reading.details import details

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
    found: list[Message] = []
    following = offset
    until = time.monotonic() + _SEARCH_S
    ended = False
    end = context.sampler.round.samples[path].end_offset
    if offset <= end:
        with Scanner(path, offset) as scanner:
            while len(found) < _PAGE:
                batch = scanner.read(_BATCH if key else _PAGE)
                if not batch:
                    ended = True
                    break
                wanted = [one for one in batch if one.key == key.encode("utf-8", "surrogateescape")] if key else batch
                room = _PAGE - len(found)
                found += wanted[:room]
                full = len(wanted) > room
                following = found[-1].offset + 1 if full else batch[-1].offset + 1
                if time.monotonic() > until:
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
    return {
        **cells(item.message),
        "offset": item.offset,
        "attempts": item.attempts,
        "ready_at": item.ready_at,
        "holder": item.holder,
        "priority": item.priority,
        "reason": item.reason,
    }


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
