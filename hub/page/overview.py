"""The overview: every journal with its rate, size, readers and problems; and what else the paths hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hub.page.places import shards_of, text_queues_of
from hub.page.rows import ROWS, row
from hub.page.views import Context, View, element, number_in
from sej.cli.state.watched import SORTS

_SORT_NAMES: Final = {"name": "name", "rate": "messages/s", "lag": "lag", "bytes": "size"}


def overview(context: Context, query: Mapping[str, str]) -> View:
    """Show all journals, those with problems in a list of their own."""
    taken = context.sampler.round
    order = query.get("sort", "name")
    if order not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, got {order[:80]!r}")
    wanted = query.get("filter", "")
    samples = [sample for sample in taken.samples.values() if wanted.lower() in sample.path.lower()]
    samples.sort(key=SORTS[order])
    first = number_in(query, "first", 0)
    shown = samples[first : first + ROWS]
    rows = {element("journal", sample.path): sample for sample in shown}
    problems = taken.problems
    parts = {
        "summary": context.render("_summary.html", {"samples": taken.samples.values(), "problems": problems}),
        "problems": context.render("_problems.html", {"problems": sorted(problems.items())}),
    }
    parts |= {
        name: row(context, "_journal_row.html", sample, {"paused": context.sampler.paused(sample.path)})
        for name, sample in rows.items()
    }
    values: dict[str, Any] = {
        "rows": list(rows),
        "sorts": _SORT_NAMES,
        "sort": order,
        "filter": wanted,
        "first": first,
        "last": first + len(shown),
        "found": len(samples),
        "page_rows": ROWS,
        "hubs": [place.text for place in context.places if place.kind == "hub"],
        "shards": [one.name for place in context.places if place.kind == "shards" for one in shards_of(place.path)],
        "text_queues": [path for place in context.places for path in text_queues_of(place)],
    }
    return View("overview.html", "Overview", parts, values)
