"""A work queue on a journal: how many items are in each state, and the items themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hub.page.journal import cells
from hub.page.rendering import address
from hub.page.views import Context, View
from sej.queue.interface.values import QueuedItem
from sej.queue.items.look import QueueLook

_ITEMS: Final = 50
_NEXT: Final = 20
_STATES: Final = (("leased", "Leased", _ITEMS), ("delayed", "Delayed", _ITEMS), ("dead", "Dead", _ITEMS))


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
