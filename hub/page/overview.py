"""The page that lists journals: all of them, or those of a hub, of a sharded journal or of a directory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from hub.naming import parse_source
from hub.page.sampler import Round
from hub.page.views import Context, MissingError, View, number_in
from sej.cli.shared.watched import SORTS, Sample
from sej.system.disk import OS

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
