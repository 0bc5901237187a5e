import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import sej
from demo import again, flights, review
from demo.chart import short
from demo.producer import produce
from textqueue import MessageStatus, TextQueue


def test_flight_is_its_row() -> None:
    row = next(flights.read_rows())
    flight = flights.to_flight(row)
    assert flight.key == b"N14228"
    assert datetime.fromtimestamp(flight.timestamp // 10**9, UTC) == datetime(2013, 1, 1, 10, tzinfo=UTC)
    values = json.loads(flight.value)
    assert list(values) == list(row)
    assert (values["dep_delay"], values["carrier"]) == (2, "UA")


def test_missing_values_are_null_and_no_tail_number_is_the_empty_key() -> None:
    row = next(row for row in flights.read_rows() if row["tailnum"] == "NA")
    flight = flights.to_flight(row)
    assert flight.key == b""
    assert json.loads(flight.value)["tailnum"] is None


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """What one airport appends, and how many flights that are."""
    root = tmp_path_factory.mktemp("machines") / "LGA"
    return root, produce("LGA", str(root))


def test_producer_appends_in_time_order(produced: tuple[Path, int]) -> None:
    root, count = produced
    assert count == 104_662
    found = 0
    for index in range(4):
        with sej.Scanner(root / f"flights.2.{index:03x}") as scanner:
            times = [message.timestamp for message in scanner]
        assert times == sorted(times)
        found += len(times)
    assert found == count


def test_polars_finds_the_delays_of_the_input(produced: tuple[Path, int], tmp_path: Path) -> None:
    for path in produced[0].glob("flights.*"):
        (tmp_path / f"LGA.{path.name}").symlink_to(path)
    (tmp_path / ".hub").touch()
    found = again.delays(tmp_path)
    totals = flights.totals()["LGA"]
    sums = {name: sum(found[name].to_pylist()) for name in ("flights", "cancelled", "delay_minutes")}
    assert sums == {"flights": totals.flights, "cancelled": totals.cancelled, "delay_minutes": totals.delay_minutes}
    groups = {(row["carrier"], row["hour"]): row["flights"] for row in found.to_pylist()}
    assert groups == dict(totals.by_group)
    assert again.differences(found, found) == []
    assert again.differences(found, found.slice(1)) == [("LGA", found["carrier"][0].as_py(), found["hour"][0].as_py())]


LATE = {
    "airport": "JFK", "month": 1, "day": 9, "hour": 9, "minute": 0, "carrier": "HA", "flight": 51, "tailnum": "N384HA",
    "dest": "HNL", "dep_delay": 1301,
}  # fmt: skip


def test_second_run_keeps_what_a_person_did(tmp_path: Path) -> None:
    path = tmp_path / "review.tq"
    late = [LATE, {**LATE, "flight": 52, "tailnum": None}]
    assert review.fill(path, late) == (2, 2, 0)
    path.write_bytes(path.read_bytes().replace(b"-2013-01-09 09:00 HA51", b"=2013-01-09 09:00 HA51"))
    assert review.fill(path, [*late, {**LATE, "flight": 53}]) == (1, 3, 1)
    with TextQueue(path, settle_s=0.0) as queue:
        assert [m.value for m in queue.messages({MessageStatus.cleared})] == [review.describe(LATE)]


def test_carriers_names_are_short_and_not_too_short() -> None:
    assert {code: short(name) for code, name in flights.airlines().items() if code in ("US", "UA", "9E")} == {
        "US": "US Airways",
        "UA": "United",
        "9E": "Endeavor",
    }
