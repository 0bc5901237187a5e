"""The pages that list journals: the overview, a hub with its clients, and a sharded journal with its shards."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from hub.naming import parse_source
from hub.page.sampler import Round, Shards, shards_of, text_queues_of
from hub.page.views import Context, MissingError, View, number_in
from sej.cli.shared.watched import SORTS, Sample
from sej.system.disk import OS

_ROWS: Final = 200
"""Journals on one page."""
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
    shown = samples[first : first + _ROWS]
    values: dict[str, Any] = {
        "samples": taken.samples.values(),
        "problems": sorted(taken.problems.items()),
        "rows": [_row(taken, sample) for sample in shown],
        "sorts": _SORT_NAMES,
        "sort": order,
        "filter": wanted,
        "first": first,
        "last": first + len(shown),
        "found": len(samples),
        "page_rows": _ROWS,
        "hubs": [place.text for place in context.places if place.kind == "hub"],
        "shards": [one.name for place in context.places if place.kind == "shards" for one in shards_of(place.path)],
        "text_queues": [path for place in context.places for path in text_queues_of(place)],
    }
    return View("overview.html", "Overview", values, live=True)


def hub_root(context: Context, query: Mapping[str, str]) -> View:
    """Show a hub: its clients and when their messages arrived, the disk, and what the hub refused."""
    root = query.get("path", "")
    if root not in (place.text for place in context.places if place.kind == "hub"):
        raise MissingError("this page has no such hub", path=root or None)
    taken = context.sampler.round
    samples = [sample for sample in taken.samples.values() if os.path.dirname(sample.path) == root]
    named = [(source, sample) for sample in samples if (source := parse_source(os.path.basename(sample.path)))]
    wanted = query.get("filter", "").lower()
    found = sorted((source, sample) for source, sample in named if wanted in str(source).lower())
    first = number_in(query, "first", 0)
    shown = found[first : first + _ROWS]
    values: dict[str, Any] = {
        "clients": len({source.client for source, _ in named}),
        "journals": len(named),
        "bytes": sum(sample.bytes for sample in samples),
        "free": OS.free_bytes(root),
        "rate": sum(sample.rate or 0.0 for sample in samples),
        "counts": None if context.hub is None else context.hub.counts(),
        "path": root,
        "rows": [_row(taken, sample) | {"source": source} for source, sample in shown],
        "filter": query.get("filter", ""),
        "first": first,
        "last": first + len(shown),
        "found": len(found),
        "page_rows": _ROWS,
    }
    return View("hub.html", f"Hub {root}", values, [("/", "Overview")], live=True)


def sharded(context: Context, query: Mapping[str, str]) -> View:
    """Show a sharded journal: each shard, and each reader over all shards."""
    one = _shards(context, query.get("name", ""))
    count = one.shards.count
    taken = context.sampler.round
    samples = [(index, taken.samples.get(one.shards.dir(index))) for index in range(count)]
    found = [(index, sample) for index, sample in samples if sample is not None]
    values = {
        "shards": count,
        "existing": len(found),
        "messages": sum(sample.messages for _, sample in found),
        "bytes": sum(sample.bytes for _, sample in found),
        "rate": sum(sample.rate or 0.0 for _, sample in found),
        "readers": _readers([sample for _, sample in found]),
        "rows": [_row(taken, sample) | {"index": f"{index:03x}"} for index, sample in found],
    }
    return View("shards.html", f"Sharded journal {one.name}", values, [("/", "Overview")], live=True)


def _shards(context: Context, name: str) -> Shards:
    for place in context.places:
        if place.kind == "shards":
            for one in shards_of(place.path):
                if one.name == name:
                    return one
    raise MissingError("this page has no such sharded journal", path=name or None)


def _readers(samples: list[Sample]) -> list[dict[str, Any]]:
    """Return each reader over all shards: its name, messages behind, shards behind, and in how many it runs."""
    behind: defaultdict[str, list[int]] = defaultdict(list)
    running: defaultdict[str, int] = defaultdict(int)
    for sample in samples:
        for reader, _ in sample.readers:
            behind[reader.name].append(reader.behind)
            running[reader.name] += reader.holder is not None
    return [
        {
            "name": name,
            "behind": sum(counts),
            "shards_behind": sum(count > 0 for count in counts),
            "running": running[name],
        }
        for name, counts in sorted(behind.items())
    ]


def _changed_ns(sample: Sample) -> int | None:
    """Return when a journal was last changed, in whole seconds; None: it never was, or cannot be read."""
    if sample.idle_s is None:
        return None
    return (sample.time_ns - int(sample.idle_s * 1e9)) // 10**9 * 10**9


def _row(taken: Round, sample: Sample) -> dict[str, Any]:
    """Return what the row of a journal shows."""
    return {
        "sample": sample,
        "changed": _changed_ns(sample),
        "problems": taken.problems.get(sample.path, ()),
        "slowest": max((reader for reader, _ in sample.readers), key=lambda reader: reader.behind, default=None),
    }
