"""``python -m benchmarks [SECTION ...]``: every section, or the named ones; a table each, and the figures as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from benchmarks.measure import Row, machine

SECTIONS = ("core", "queue", "shard", "hub", "textqueue", "kestrel", "spark", "cluster", "tables")


def main() -> int:
    """Run the sections; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], help="which ones; all if none is named")
    parser.add_argument("--json", type=Path, default=Path("artifacts/benchmarks.json"), help="where the figures go")
    arguments = parser.parse_args()
    about = machine()
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    results: dict[str, list[Row]] = {}
    for section in arguments.section or SECTIONS:
        module = importlib.import_module(f"benchmarks.{section}")
        rows = results[section] = [Row(*found) for found in module.run()]
        print(f"\n{section}")
        for found in rows:
            ratio = "" if found.ratio is None else f"{found.ratio:8.2f}"
            verdict = {None: "", True: "ok", False: "MISSED"}[found.ok]
            print(f"  {found.name:58} {found.rate:>18} {ratio:>9} {found.target or '':>9}  {verdict}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {section: [found._asdict() for found in rows] for section, rows in results.items()}
    arguments.json.write_text(json.dumps({"machine": about, "sections": figures}, indent=1) + "\n")
    missed = [found.name for rows in results.values() for found in rows if found.ok is False]
    print(f"\n{len(missed)} targets missed" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
