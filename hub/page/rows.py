"""Rows of tables of journals: rendered once, and again only if something in them has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from hub.page.views import Context
from sej.cli.state.watched import Sample

ROWS: Final = 200
"""Journals on one page."""
_cached: dict[tuple[str, str], tuple[object, Markup]] = {}


def changed_ns(sample: Sample) -> int | None:
    """Return when a journal was last changed, in whole seconds; None: it never was, or cannot be read."""
    if sample.idle_s is None:
        return None
    return (sample.time_ns - int(sample.idle_s * 1e9)) // 10**9 * 10**9


def row(context: Context, template: str, sample: Sample, more: Mapping[str, Any]) -> Markup:
    """Return the row of a journal, or the last one if nothing in it has changed.

    Args:
        context: what the pages read from.
        template: the template of the row.
        sample: the journal.
        more: what the template needs in addition.
    """
    rates = context.sampler.rates(sample.path)
    problems: Sequence[str] = context.sampler.round.problems.get(sample.path, ())
    changed = changed_ns(sample)
    readers = [(reader.name, reader.offset, reader.behind, reader.error) for reader, _ in sample.readers]
    there = (sample.end_offset, sample.first_offset, sample.rate, sample.bytes, sample.error, sample.writer)
    key = there, changed, readers, list(problems), rates, dict(more)
    name = template, sample.path
    before = _cached.get(name)
    if before is not None and before[0] == key:
        return before[1]
    if len(_cached) > 4 * len(context.sampler.round.samples) + ROWS:
        _cached.clear()  # of journals that are gone
    slowest = max((reader for reader, _ in sample.readers), key=lambda reader: reader.behind, default=None)
    values = {"sample": sample, "changed": changed, "problems": problems, "rates": rates, "slowest": slowest}
    found = context.render(template, values | dict(more))
    _cached[name] = key, found
    return found
