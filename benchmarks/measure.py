"""Measuring fairly: interleaved rounds in one run, medians, ratios; what machine it was."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Row", "cpu_timed", "interleaved", "machine", "row", "timed"]


class Row(NamedTuple):
    """One line of a report.

    Attributes:
        name: what was measured, with its durability.
        rate: the figure, with its unit.
        ratio: against what the target speaks of; None if nothing is compared.
        target: the least (or with ``<``: the most) that the ratio may be; None: for information.
        ok: whether the ratio reaches the target.
    """

    name: str
    rate: str
    ratio: float | None
    target: str | None
    ok: bool | None


def interleaved(candidates: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    """Run each candidate once a round, one after the other; the median of what each returned."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            found[name].append(candidate())
    return {name: statistics.median(values) for name, values in found.items()}


def timed(work: Callable[[], object], count: int) -> float:
    """Operations a second of work, which does count of them."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def cpu_timed(work: Callable[[], object], count: int) -> float:
    """Operations a second of this process's CPU time, of work, which does count of them."""
    start = time.process_time_ns()
    work()
    return count * 1e9 / (time.process_time_ns() - start)


def row(name: str, rate: str, ratio: float, least: float | None = None, *, most: float | None = None) -> Row:
    """A line with its verdict."""
    if least is not None:
        return Row(name, rate, ratio, f">= {least:g}", ratio >= least)
    if most is not None:
        return Row(name, rate, ratio, f"<= {most:g}", ratio <= most)
    return Row(name, rate, ratio, None, None)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    from sej.codec import IMPLEMENTATION

    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "codec": IMPLEMENTATION,
    }
