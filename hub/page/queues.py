"""A work queue on a journal, and a text queue: how many items are in each state, and the items themselves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from hub.page.journal import cells
from hub.page.places import text_queues_of
from hub.page.views import Context, MissingError, View, address
from sej.queue.interface.values import QueuedItem
from sej.queue.look import QueueLook
from textqueue.format.grammar import CONTROLS, MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import check
from textqueue.reading.details import details

_ITEMS: Final = 50
_NEXT: Final = 20
_STATES: Final = (("leased", "Leased", _ITEMS), ("delayed", "Delayed", _ITEMS), ("dead", "Dead", _ITEMS))
_SHOWN: Final = 1000
_MARKS: Final = {control.status: chr(control.byte) for control in CONTROLS if control.status is not None}
_VALUE_CHARS: Final = 2000


def queue(context: Context, query: Mapping[str, str]) -> View:
    """Show a queue. It is looked at without a lock, and no item is taken."""
    path, name = context.require_journal(query.get("path", "")), query.get("name", "queue")
    look = QueueLook(path, name)
    counts = look.stats()
    paused = bool(counts.pop("paused", False))
    history = context.sampler.queue_counts(path, name)
    values: dict[str, Any] = {"path": path, "name": name, "changes": context.allow_changes}
    parts = {
        "counts": context.render("_counts.html", values | {"counts": counts, "history": history, "paused": paused}),
        "next": context.render(
            "_items.html", values | {"state": "ready", "items": [_item(one) for one in look.peek(_NEXT)]}
        ),
    }
    for state, _, limit in _STATES:
        items = [_item(one) for one in look.items(state, limit=limit)] if counts[state] else []
        parts[state] = context.render("_items.html", values | {"state": state, "items": items})
    trail = [("/", "Overview"), (f"/journal?path={address(path)}", path)]
    titles = {state: title for state, title, _ in _STATES}
    return View("queue.html", f"Queue {name} of {path}", parts, values | {"titles": titles}, trail)


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
    if path not in (name for place in context.places for name in text_queues_of(place)):
        raise MissingError("this page has no such text queue", path=path or None)
    with TextQueue(path) as queue:
        found = list(islice(details(queue.messages(frozenset(MessageStatus)), now_ns=time.time_ns()), _SHOWN + 1))
    counts = Counter(one.message.status.name for one in found)
    entries = [
        {
            "line": one.line,
            "mark": _MARKS[one.message.status],
            "status": one.message.status.name,
            "text": one.message.value_bytes.decode("utf-8", "replace")[:_VALUE_CHARS],
            "variables": [text.encode("utf-8", "replace").decode() for text in one.message.get_variables()],
            "holder": one.holder,
        }
        for one in found[:_SHOWN]
    ]
    parts = {
        "facts": context.render(
            "_text_queue_facts.html",
            {
                "counts": [(status.name, counts[status.name]) for status in _MARKS],
                "claimed": sum(one.holder is not None for one in found),
                "more": len(found) > _SHOWN,
                "shown": _SHOWN,
            },
        ),
        "mistakes": context.render("_mistakes.html", {"mistakes": check(path)[:_SHOWN]}),
        "entries": context.render("_entries.html", {"entries": entries}),
    }
    return View("text_queue.html", f"Text queue {path}", parts, {"path": path}, [("/", "Overview")])
