"""What the demo shows at its end: tables, rates, and every number next to the one computed from the input."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from demo.chart import short
from demo.flights import AIRPORTS, Totals
from demo.review import HOW_TO_EDIT, Review

if TYPE_CHECKING:
    import pyarrow as pa

_WORST = 12
_ENOUGH = 100
_ALL = "all"


class Report:
    """Collects times and checks, and prints."""

    def __init__(self, console: Console) -> None:
        """Start the clock."""
        self._console = console
        self._started = time.perf_counter()
        self._times: dict[str, float] = {}
        self._checks: list[tuple[str, str, int, int]] = []
        self._expected: dict[str, Totals] = {}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Take the time of a step."""
        started = time.perf_counter()
        yield
        self._times[what] = time.perf_counter() - started

    def expect(self, expected: dict[str, Totals]) -> None:
        """What the input says."""
        self._expected = expected

    def check(self, what: str, where: str, expected: int, found: int) -> None:
        """Keep a number of an airport, or of all, next to the expected one."""
        self._checks.append((what, where, expected, found))

    # --- what was found

    def check_transport(self, moved: dict[str, dict[str, int]]) -> None:
        """Compare what each stage counted on the way to Spark."""
        for what, counts in moved.items():
            for airport, totals in self._expected.items():
                self.check(what, airport, totals.flights, counts[airport])

    def check_analysis(
        self, delays: pa.Table, late: list[dict[str, Any]], found: Review, counted: int, counted_s: float
    ) -> None:
        """Compare what Spark says."""
        sums: dict[str, dict[str, int]] = {airport: defaultdict(int) for airport in self._expected}
        groups: dict[str, dict[tuple[str, int], int]] = {airport: {} for airport in self._expected}
        for row in delays.to_pylist():
            for name in ("flights", "cancelled", "without_tail_number", "delay_minutes"):
                sums[row["airport"]][name] += row[name]
            groups[row["airport"]][row["carrier"], row["hour"]] = row["flights"]
        for airport, totals in self._expected.items():
            self.check("flights in Spark", airport, totals.flights, sums[airport]["flights"])
            self.check("cancelled", airport, totals.cancelled, sums[airport]["cancelled"])
            missing = sums[airport]["without_tail_number"]
            self.check("without a tail number", airport, totals.without_tail_number, missing)
            self.check("minutes of delay", airport, totals.delay_minutes, sums[airport]["delay_minutes"])
            same = sum(groups[airport].get(group) == count for group, count in totals.by_group.items())
            self.check("groups by carrier and hour", airport, len(totals.by_group), same)
            self.check("over six hours late", airport, totals.late, sum(row["airport"] == airport for row in late))
        flights = sum(totals.flights for totals in self._expected.values())
        self.check("pipeline.count of the hub's root", _ALL, flights, counted)
        self.check("flights in review.tq", _ALL, sum(totals.late for totals in self._expected.values()), found.total)
        self._times["pipeline.count(root), from the index"] = counted_s

    def check_again(self, delays: pa.Table, different: list[tuple[str, str, int]]) -> None:
        """Compare what Polars says with what Spark says."""
        self.check("groups that are the same in Polars", _ALL, delays.num_rows, delays.num_rows - len(different))

    # --- what is shown

    def show_delays(self, delays: pa.Table, names: dict[str, str]) -> None:
        """Show the airports with their best and worst hours."""
        rows = delays.to_pylist()
        table = Table(title="Delays by airport", title_justify="left")
        for name in ("airport", "flights", "cancelled", "mean delay", "best hour", "worst hour"):
            table.add_column(name, justify="left" if name == "airport" else "right", no_wrap=True)
        for airport in AIRPORTS:
            table.add_row(f"{airport} {AIRPORTS[airport]}", *_airport_row([r for r in rows if r["airport"] == airport]))
        self._console.print(table)
        table = Table(
            title=f"Worst by airport, carrier and hour (of those with {_ENOUGH} flights)", title_justify="left"
        )
        for name in ("airport", "carrier", "hour", "flights", "mean delay", "9 of 10 within", "over 15 min"):
            table.add_column(name, justify="left" if name in ("airport", "carrier") else "right", no_wrap=True)
        enough = [row for row in rows if row["flights"] >= _ENOUGH]
        for row in sorted(enough, key=lambda row: -row["mean_delay"])[:_WORST]:
            table.add_row(
                row["airport"],
                short(names.get(row["carrier"], row["carrier"])),
                f"{row['hour']}:00",
                f"{row['flights']:,}",
                f"{row['mean_delay']:.1f} min",
                f"{row['p90_delay']} min",
                f"{row['late_share']:.0%}",
            )
        self._console.print(table)

    def show_review(self, path: Path, found: Review) -> None:
        """Where the person's work is, and how it is done."""
        with path.open(encoding="utf-8") as file:
            first = "".join(line for line, _ in zip(file, range(3), strict=False))
        state = f"{found.total} flights, {found.added} of them new, {found.settled} settled by somebody"
        text = f"[bold]{path}[/bold]: {state}\n\n{escape(first)}...\n\n{escape(HOW_TO_EDIT)}"
        self._console.print(Panel(text, title="For a person", title_align="left"))

    def summary(self, root: Path) -> int:
        """Times, rates and checks; returns the exit code."""
        flights = sum(totals.flights for totals in self._expected.values())
        table = Table(title="Steps", title_justify="left")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        table.add_column("flights a second", justify="right")
        for what, seconds in self._times.items():
            table.add_row(what, f"{seconds:.2f}", f"{flights / max(seconds, 1e-9):,.0f}")
        self._console.print(table)
        self._console.print(self._counts())
        wrong = [check for check in self._checks if check[2] != check[3]]
        files = ", ".join(sorted(path.name for path in root.iterdir() if path.name not in ("warehouse", "checkpoint")))
        took = time.perf_counter() - self._started
        self._console.print(f"In {root}: {files}")
        if wrong:
            self._console.print(f"[bold red]{len(wrong)} of {len(self._checks)} counts differ from the input")
            return 1
        self._console.print(
            f"[bold green]All {len(self._checks)} counts agree with the input[/]: {flights:,} flights in {took:.0f} s"
        )
        return 0

    def _counts(self) -> Table:
        """Every number that was checked: one if it equals the input's, both if they differ."""
        table = Table(title="Counts, each compared with the input", title_justify="left")
        table.add_column("what")
        for name in (*AIRPORTS, _ALL):
            table.add_column(name, justify="right")
        found = {(what, where): (expected, found) for what, where, expected, found in self._checks}
        for what in dict.fromkeys(check[0] for check in self._checks):
            cells = [found.get((what, where)) for where in (*AIRPORTS, _ALL)]
            table.add_row(what, *("" if cell is None else _cell(*cell) for cell in cells))
        return table


def _cell(expected: int, found: int) -> str:
    return f"{found:,}" if found == expected else f"[bold red]{found:,}, not {expected:,}"


def _airport_row(rows: list[dict[str, Any]]) -> list[str]:
    minutes: dict[int, int] = defaultdict(int)
    flown: dict[int, int] = defaultdict(int)
    for row in rows:
        minutes[row["hour"]] += row["delay_minutes"]
        flown[row["hour"]] += row["flights"] - row["cancelled"]
    means = {hour: minutes[hour] / flown[hour] for hour in flown if flown[hour] >= _ENOUGH}
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    total = sum(row["flights"] for row in rows)
    cancelled = sum(row["cancelled"] for row in rows)
    mean = sum(minutes.values()) / sum(flown.values())
    return [
        f"{total:,}",
        f"{cancelled:,} ({cancelled / total:.1%})",
        f"{mean:.1f} min",
        f"{best}:00 ({means[best]:.1f})",
        f"{worst}:00 ({means[worst]:.1f})",
    ]
