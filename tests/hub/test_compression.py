"""Messages that cross the connection compressed, because the client wants that."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import hub
from hub.wire import Client, Copier, Server
from sej import Message
from tests.hub.pipe import Pipe
from tests.hub.support import fill, same_bytes, serving
from tests.sej.support import packed

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
