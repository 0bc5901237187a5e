import json
from datetime import UTC, datetime
from pathlib import Path

import sej
from demo import flights, review
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


def test_producer_appends_in_time_order(tmp_path: Path) -> None:
    count = produce("LGA", str(tmp_path / "tree"))
    assert count == 104_662
    found = 0
    for index in range(4):
        with sej.Scanner(tmp_path / "tree" / f"flights.2.{index:03x}") as scanner:
            times = [message.timestamp for message in scanner]
        assert times == sorted(times)
        found += len(times)
    assert found == count


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
