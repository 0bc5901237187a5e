"""``python -m benchmarks [SECTION ...]``: the sections, or the named ones; a table each, and the figures as JSON.

``growth`` and ``simulation`` take minutes, and run only if they are named.

With ``--runs 5`` the sections run five times, and the figures are medians. ``--compare OLD.json`` prints each figure as
a multiple of the old one, with the interval that holds it whichever of the runs one takes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, machine

SECTIONS = ("limits", "core", "queue", "shard", "hub", "textqueue", "kestrel", "spark", "cluster", "tables")
LONG = ("growth", "simulation")
"""Sections that take many minutes, and run only if they are named."""
_NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")
_SMALLER = re.compile(r"\b(?:ms|us|ns|s)\b|MiB$|MiB sent|ns/|ns CPU|us/|%")
"""Units where less is better."""


def main() -> int:
    """Run the sections; 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "section", nargs="*", choices=[*SECTIONS, *LONG, []], help="which ones; all but the long ones if none is named"
    )
    parser.add_argument("--json", type=Path, default=Path("artifacts/benchmarks.json"), help="where the figures go")
    parser.add_argument("--runs", type=int, default=1, help="how often each section runs")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="the figures of an earlier run")
    arguments = parser.parse_args()
    old = json.loads(arguments.compare.read_text()) if arguments.compare else None
    about = machine()
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    results: dict[str, list[dict[str, Any]]] = {}
    for section in arguments.section or SECTIONS:
        module = importlib.import_module(f"benchmarks.{section}")
        runs = [[Row(*found) for found in module.run()] for _ in range(arguments.runs)]
        results[section] = [_median(rows) for rows in zip(*runs, strict=True)]
        before = {} if old is None else {found["name"]: found for found in old["sections"].get(section, [])}
        print(f"\n{section}")
        for found in results[section]:
            ratio = "" if found["ratio"] is None else f"{found['ratio']:8.2f}"
            verdict = {None: "", True: "ok", False: "MISSED"}[found["ok"]]
            change = _change(before.get(found["name"]), found)
            print(
                f"  {found['name']:58} {found['rate']:>18} {ratio:>9} {found['target'] or '':>9}  {verdict:6}  {change}"
            )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine": about, "sections": results}, indent=1) + "\n")
    missed = [found["name"] for rows in results.values() for found in rows if found["ok"] is False]
    print(f"\n{len(missed)} targets missed" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed else 0


def _median(rows: tuple[Row, ...]) -> dict[str, Any]:
    """One line of several runs: the one whose ratio, or else whose rate, is the median; with the numbers of all."""
    numbers = [number for found in rows if (number := _number(found.rate)) is not None]
    ranked = sorted(rows, key=lambda found: found.ratio if found.ratio is not None else _number(found.rate) or 0.0)
    return {**ranked[len(ranked) // 2]._asdict(), "runs": numbers}


def _number(rate: str) -> float | None:
    match = _NUMBER.search(rate)
    return None if match is None else float(match[0].replace(",", ""))


def _change(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """The new figure as a multiple of the old one, more being better, and between which multiples it is."""
    if before is None or not before.get("runs") or not now["runs"] or not all([*before["runs"], *now["runs"]]):
        return ""
    if _NUMBER.sub("", before["rate"]) != _NUMBER.sub("", now["rate"]):
        return "(another unit)"
    old, new = (before, now) if not _SMALLER.search(now["rate"]) else (now, before)
    middle = statistics.median(new["runs"]) / statistics.median(old["runs"])
    low, high = min(new["runs"]) / max(old["runs"]), max(new["runs"]) / min(old["runs"])
    return f"{middle:.2f} of before ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
