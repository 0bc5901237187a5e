"""A text queue: the messages of a ``.tq`` file with their status, and which process has claimed which."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final

from hub.page.places import text_queues_of
from hub.page.views import Context, MissingError, View
from textqueue.format.grammar import CONTROLS, MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import check
from textqueue.reading.details import details

_SHOWN: Final = 1000
_MARKS: Final = {control.status: chr(control.byte) for control in CONTROLS if control.status is not None}
_VALUE_CHARS: Final = 2000


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
