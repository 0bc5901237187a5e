"""Columns, times and compression on the wire: a reader gets what it requests, and little else is sent."""

from __future__ import annotations

import json
import random
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import hub
import sej
from hub.wire import Client, Copier, Rows, Server
from hub.wire import hub_pb2 as pb
from hub.wire.frames import COLUMNS, open_rows, rows_response
from sej import Message
from sej.codec import Columns
from tests.hub.support import connected, fill, same_bytes, serving
from tests.hub.transport import Pipe
from tests.sej.support import overwrite, packed, sample

JOURNAL = "j"


def messages(count: int, seed: int = 1) -> list[sej.Message]:
    """Messages whose times mostly rise."""
    rng = random.Random(seed)
    return [
        sej.Message(
            at, at * 10 + rng.randrange(-30, 30), at % 256, b"k%d" % (at % 7), rng.randbytes(rng.randrange(400))
        )
        for at in range(count)
    ]


def decoded(rows: Iterable[Rows], *, keys: bool = True, values: bool = True) -> list[tuple[object, ...]]:
    """Return the messages of rows, after a check that each part continues where the one before ended."""
    found: list[tuple[object, ...]] = []
    due = -1
    for begin, stop, first, columns in rows:
        assert begin == due or due < 0
        assert begin <= first <= first + columns.messages <= stop
        due = stop
        found += _decoded(first, columns, keys, values)
    return found


def _decoded(first: int, found: Columns, keys: bool, values: bool) -> list[tuple[object, ...]]:
    key, value = array("i", found.key_ends), array("i", found.value_ends)
    times, types = array("q", found.timestamps), array("i", found.types)
    return [
        (
            first + at,
            times[at],
            types[at],
            found.key_data[key[at] : key[at + 1]] if keys else None,
            found.value_data[value[at] : value[at + 1]] if values else None,
        )
        for at in range(found.messages)
    ]


@pytest.mark.parametrize("segment_bytes", [1 << 30, 20_000])
def test_rows_are_the_messages(tmp_path: Path, segment_bytes: int) -> None:
    written = messages(3000)
    fill(tmp_path / "a.j", written, segment_bytes=segment_bytes)
    with connected(tmp_path, "a") as (_, client):
        assert decoded(client.read_columns(JOURNAL, 0)) == written
        assert decoded(client.read_columns(JOURNAL, 7, 2001)) == written[7:2001]
        assert decoded(client.read_columns(JOURNAL, 3000)) == []
        some = decoded(client.read_columns(JOURNAL, 0, columns=("timestamp", "type", "key")), values=False)
        assert some == [(*message[:4], None) for message in written]
        some = decoded(client.read_columns(JOURNAL, 0, columns=("type", "timestamp", "value")), keys=False)
        assert some == [(*message[:3], None, message.value) for message in written]
        only = list(client.read_columns(JOURNAL, 5, columns=()))
        assert sum(rows.found.messages for rows in only) == 2995


def test_no_message_within_the_times_is_left_out(tmp_path: Path) -> None:
    written = messages(3000)
    fill(tmp_path / "a.j", written)
    with connected(tmp_path, "a") as (_, client):
        for since, until in ((None, 500), (29_000, None), (14_000, 15_000), (10**6, None), (None, -(10**6)), (7, 7)):
            found = decoded(client.read_columns(JOURNAL, 0, since=since, until=until))
            least, most = -(2**63) if since is None else since, 2**63 - 1 if until is None else until
            assert [m for m in found if least <= m[1] <= most] == [  # type: ignore[operator]
                m for m in written if least <= m.timestamp <= most
            ]


def test_what_is_not_requested_is_not_sent(tmp_path: Path) -> None:
    fill(tmp_path / "a.j", [sej.Message(at, at, 0, b"key", bytes(1000)) for at in range(5000)])
    with serving(tmp_path) as (_, server), Pipe(server.address) as pipe, Client(pipe.address, client_id="a") as client:

        def sent(**options: object) -> int:
            before = pipe.received
            for _ in client.read_columns(JOURNAL, 0, **options):  # type: ignore[arg-type]
                pass
            return pipe.received - before

        whole = sent()
        assert whole > 5000 * 1000
        assert sent(columns=()) < 5000
        assert sent(columns=["timestamp"]) < 5000 * 9
        assert sent(columns=["key"]) < 5000 * 9
        assert sent(since=4950) < whole / 50
        assert sent(until=49) < whole / 50


def test_what_was_skipped_shows_in_the_offsets(tmp_path: Path) -> None:
    written = sample(30)
    fill(tmp_path / "a.j", written)
    overwrite(tmp_path / "a.j" / "jnl" / f"{0:016x}.jnl", len(packed(written[:10])) + 10, b"\xff" * 8)
    with connected(tmp_path, "a") as (_, client):
        parts = list(client.read_columns(JOURNAL, 0, columns=["key"], skip=True, verify=False))
        assert [(part.begin, part.stop) for part in parts] == [(0, 10), (11, 30)]
        with pytest.raises(sej.CorruptionError):
            list(client.read_columns(JOURNAL, 0, columns=["key"]))


def test_wrong_columns_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with connected(tmp_path) as (_, client), pytest.raises(ValueError, match="columns must be some of offset, time"):
        client.read_columns(JOURNAL, 0, columns=["size"])


def test_a_large_value_is_in_memory_twice_at_most() -> None:
    message = sej.Message(7, 1, 2, b"key", bytes(8 << 20))
    tracemalloc.start()
    try:
        pieces = [packed([message])]
        tracemalloc.reset_peak()
        answer = rows_response(pieces, pb.ReadRequest(Columns=ALL))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer is not None
    assert (pieces, most < 2.1 * len(message.value)) == ([], True), most
    assert decoded(open_rows(answer, 0, ALL, keys=True, values=True)) == [message]
    assert pb.ReadResponse.FromString(answer).Rows.Values == message.value


ALL = sum(COLUMNS.values())
GOOD = {
    "Begin": 5, "Stop": 9, "First": 6, "Count": 2, "Timestamps": bytes(16), "Types": bytes(8),
    "KeyEnds": array("i", [0, 1, 3]).tobytes(), "Keys": b"kkk", "ValueEnds": array("i", [0, 0, 2]).tobytes(),
    "Values": b"vv",
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"Count": 3},
        {"Count": 1 << 31},
        {"Begin": 7},
        {"Stop": 7},
        {"Stop": (1 << 64) - 1},
        {"Timestamps": bytes(15)},
        {"Types": b""},
        {"KeyEnds": array("i", [0, 1, 4]).tobytes()},
        {"ValueEnds": array("i", [1, 1, 2]).tobytes()},
        {"ValueEnds": b""},
    ],
    ids=str,
)
def test_columns_of_a_wrong_length_are_refused(wrong: dict[str, Any]) -> None:
    def answer(**fields: Any) -> bytes:
        return pb.ReadResponse(Rows=pb.Rows(**fields)).SerializeToString()

    (rows,) = open_rows(answer(**GOOD), 0, ALL, keys=True, values=True)
    assert (rows.begin, rows.stop, rows.first, rows.found.messages) == (5, 9, 6, 2)
    with pytest.raises(sej.InvalidMessageError, match=r"the hub's answer .* (rows|messages)"):
        list(open_rows(answer(**GOOD | wrong), 0, ALL, keys=True, values=True))


# --- verification


def test_get_and_follow_verify_unless_that_is_turned_off(tmp_path: Path) -> None:
    written = [sej.Message(at, at, 0, b"", b"value %d" % at) for at in range(1000)]
    fill(tmp_path / "a.j", written)
    segment = tmp_path / "a.j" / "jnl" / f"{0:016x}.jnl"
    segment.write_bytes(segment.read_bytes().replace(b"value 500", b"valve 500"))
    with serving(tmp_path) as (_, server), Client(server.address, client_id="b") as client:
        reads: list[Callable[[bool], object]] = [
            lambda verify: client.get(JOURNAL, 400, client_id="a", verify=verify),
            lambda verify: next(client.follow(JOURNAL, 400, client_id="a", verify=verify)),
            lambda verify: list(client.read_encoded(JOURNAL, 400, client_id="a", verify=verify)),
            lambda verify: list(client.read_columns(JOURNAL, 400, client_id="a", verify=verify)),
        ]
        for read in reads:
            with pytest.raises(sej.CorruptionError) as caught:
                read(True)
            assert caught.value.offset == 0
            says = str(caught.value)
            assert says.startswith(f"hub at {server.address}, journal a.j, offset 0: the hub's copy is damaged")
            assert "messages 0 to 999" in says
            assert read(False)


def test_messages_after_the_last_checksum_are_read_too(tmp_path: Path) -> None:
    with connected(tmp_path, "a") as (_, client):
        for at in range(5):
            client.put(JOURNAL, [sej.Message(at, at, 0, b"", bytes(200_000))])
            assert len(client.get(JOURNAL, 0, max_bytes=1 << 20)) == at + 1
            assert client.get(JOURNAL, at)[0].offset == at


# --- messages that cross the connection compressed, because the client wants that


ROWS = [
    Message(at, at, 0, b"EWR", json.dumps({"carrier": random.Random(at).choice(["UA", "DL"]), "flight": at}).encode())
    for at in range(20_000)
]
SIZE = len(packed(ROWS))


class Line(Pipe):
    """A relay that counts the bytes of both directions."""

    def __init__(self, target: str) -> None:
        self.sent = 0
        super().__init__(target, change=self._count)

    def _count(self, data: bytes) -> bytes:
        self.sent += len(data)
        return data


@pytest.mark.parametrize("compress", [False, True])
def test_the_copier_sends_fewer_bytes_if_it_compresses(tmp_path: Path, compress: bool) -> None:
    fill(tmp_path / "log", ROWS)
    with (
        serving(tmp_path / "hub") as (_, server),
        Line(server.address) as line,
        Client(line.address, client_id="a", compress=compress) as client,
        Copier(tmp_path / "log", client) as copier,
    ):
        assert copier.run_once() == len(ROWS)
    same_bytes(tmp_path / "log", tmp_path / "hub" / "a.log")
    assert (line.sent < SIZE / 3) == compress


READS: dict[str, Callable[[Client], object]] = {
    "read": lambda client: b"".join(client.read_encoded("log", 0)),
    "get": lambda client: client.get("log", 0, len(ROWS), max_bytes=SIZE),
    "follow": lambda client: next(client.follow("log", 0, len(ROWS))),
    "columns": lambda client: [rows.found.value_data for rows in client.read_columns("log", 0, columns=["value"])],
}


@pytest.mark.parametrize("name", READS)
def test_a_reader_receives_fewer_bytes_and_the_same_messages(tmp_path: Path, name: str) -> None:
    found, received = [], []
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0") as server:
        store.put("a", "log", ROWS)
        for compress in (False, True):
            with Line(server.address) as line, Client(line.address, client_id="a", compress=compress) as client:
                found.append(READS[name](client))
                received.append(line.received)
    assert found[0] == found[1]
    assert received[1] < received[0] / 3


def test_a_small_request_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "log", [Message(0, 1, 0, b"", bytes(8 << 20))])
    with (
        serving(tmp_path / "hub", max_message_bytes=1 << 20) as (store, server),
        Client(server.address, client_id="a", compress=True) as client,
        Copier(tmp_path / "log", client) as copier,
    ):
        with pytest.raises(hub.HubError):
            copier.run_once()
        assert store.sources() == []
