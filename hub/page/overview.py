"""The overview: every journal with its rate, size, readers and problems; and what else the paths hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from hub.page.views import Context, View, element, number_in
from sej.cli.watched import SORTS, Sample

__all__ = ["ROWS", "overview"]

ROWS: Final = 200
"""Journals on one page."""
_SORT_NAMES: Final = {"name": "name", "rate": "messages/s", "lag": "lag", "bytes": "size"}
_cached: dict[str, tuple[object, Markup]] = {}


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
    problems = {path: found for path, found in taken.problems.items() if path in taken.samples}
    parts = {
        "summary": context.render("_summary.html", {"samples": taken.samples.values(), "problems": problems}),
        "problems": context.render("_problems.html", {"problems": sorted(problems.items())}),
    }
    parts |= {name: _row(context, sample, problems.get(sample.path, [])) for name, sample in rows.items()}
    values: dict[str, Any] = {
        "rows": list(rows),
        "sorts": _SORT_NAMES,
        "sort": order,
        "filter": wanted,
        "first": first,
        "last": first + len(shown),
        "found": len(samples),
        "page_rows": ROWS,
    }
    return View("overview.html", "Overview", parts, values)


def _row(context: Context, sample: Sample, problems: list[str]) -> Markup:
    """Render a row, or return the last one if nothing in it has changed."""
    rates = context.sampler.rates(sample.path)
    changed = None if sample.idle_s is None else sample.time_ns - int(sample.idle_s * 1e9)
    readers = [(reader.name, reader.offset, reader.behind, reader.error) for reader, _ in sample.readers]
    key = (
        sample.end_offset,
        sample.first_offset,
        sample.rate,
        sample.bytes,
        sample.error,
        None if changed is None else changed // 10**9,
        readers,
        problems,
        rates,
    )
    before = _cached.get(sample.path)
    if before is not None and before[0] == key:
        return before[1]
    if len(_cached) > 2 * len(context.sampler.round.samples) + ROWS:
        _cached.clear()
    slowest = max((reader for reader, _ in sample.readers), key=lambda reader: reader.behind, default=None)
    values = {"sample": sample, "changed": changed, "problems": problems, "rates": rates, "slowest": slowest}
    found = context.render("_journal_row.html", values)
    _cached[sample.path] = key, found
    return found
