"""Named readers of a hub: one program at a time, an offset that is kept, and a stale holder that is refused."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub
import sej
from hub.naming import Source
from hub.readers import Kept, Place, Readers
from hub.tokens import Grant, hash_token
from hub.wire import Client, Reader, Tokens, make_token
from hub.wire import hub_pb2 as pb
from hub.wire.named_readers import HeldReaders
from tests.cli.inside import inside
from tests.hub.support import Killed, connected, fill, serving, until
from tests.sej.hooks import Worker
from tests.sej.support import sample, write
from tests.ticks import Clock

ORDERS = Source("EWR", "orders")
A, B = "0a", "0b"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[hub.Store]:
    fill(tmp_path / "EWR.orders", sample(10))
    with hub.Store(tmp_path) as store:
        yield store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def readers(store: hub.Store, clock: Clock) -> Iterator[Readers]:
    readers = Readers(store, clock=clock)
    yield readers
    readers.close()


def place(offset: int | None = None, *, reset: bool = False) -> list[Place]:
    return [Place(ORDERS, offset, reset)]


# --- the lease, with a clock that the test moves


def test_one_holder_at_a_time(store: hub.Store, readers: Readers, clock: Clock) -> None:
    assert readers.hold("r", A, 30.0, place(), take=True) == [(0, False)]
    assert readers.hold("r", A, 30.0, place(), take=True) == [(0, False)], "repeated after a lost answer"
    with pytest.raises(hub.ReaderHeldError, match=r"'r' of EWR\.orders is held by another program.* in 30 s"):
        readers.hold("r", B, 30.0, place(), take=True)
    with pytest.raises(sej.LeaseLostError, match="not held by this program"):
        readers.hold("r", B, 30.0, place(5))
    clock.now += 29
    assert readers.hold("r", A, 30.0, place(4)) == [(4, True)]
    clock.now += 29
    with pytest.raises(hub.ReaderHeldError):
        readers.hold("r", B, 30.0, place(), take=True)
    assert sej.read_offset(Path(store.root) / "EWR.orders", "r") == 4


def test_a_stale_holder_is_refused(readers: Readers, clock: Clock) -> None:
    readers.hold("r", A, 30.0, place(), take=True)
    clock.now += 31
    assert readers.hold("r", A, 30.0, place(2)) == [(2, True)], "late, but no other program took it"
    clock.now += 31
    assert readers.hold("r", B, 30.0, place(), take=True) == [(2, True)]
    with pytest.raises(sej.LeaseLostError):
        readers.hold("r", A, 30.0, place(7))
    assert readers.hold("r", B, 30.0, place(3)) == [(3, True)]


def test_a_restarted_hub_waits_for_the_holder_and_refuses_the_stale_one(
    store: hub.Store, readers: Readers, clock: Clock
) -> None:
    readers.hold("r", A, 30.0, place(), take=True)
    clock.now += 31
    readers.hold("r", B, 30.0, place(1), take=True)
    readers.close()
    clock.now += 1000
    again = Readers(store, clock=clock)
    with pytest.raises(sej.LeaseLostError):
        again.hold("r", A, 30.0, place(9))
    with pytest.raises(hub.ReaderHeldError):
        again.hold("r", A, 30.0, place(), take=True)
    assert again.hold("r", B, 30.0, place(5)) == [(5, True)]
    again.close()


def test_a_local_program_and_the_hub_exclude_each_other(store: hub.Store, readers: Readers, clock: Clock) -> None:
    path = Path(store.root) / "EWR.orders"
    readers.hold("r", A, 30.0, place(), take=True)
    with pytest.raises(sej.LockedError):
        sej.Offset(path, "r")
    clock.now += 31
    readers.sweep()
    with sej.Offset(path, "r") as local:
        with pytest.raises(hub.ReaderHeldError, match="held by a program on the hub's machine"):
            readers.hold("r", B, 30.0, place(), take=True)
        local.commit(8)
    with pytest.raises(sej.LeaseLostError, match="moved its offset from 0 to 8"):
        readers.hold("r", A, 30.0, place(2))
    assert sej.read_offset(path, "r") == 8
    readers.hold("r", A, 30.0, place(), take=True)
    clock.now += 31
    readers.sweep()
    with sej.Offset(path, "r"), pytest.raises(sej.LeaseLostError, match="a program on the hub's machine took it"):
        readers.hold("r", A, 30.0, place(9))
    with pytest.raises(sej.LeaseLostError):
        readers.hold("r", A, 30.0, place(9))


def test_a_reader_that_cannot_be_taken_everywhere_is_taken_nowhere(
    store: hub.Store, readers: Readers, clock: Clock
) -> None:
    flights = Source("EWR", "flights")
    store.put("EWR", "flights", sample(5))
    readers.hold("r", "one:1", 30.0, [Place(ORDERS, 2)], take=True)
    with pytest.raises(hub.ReaderHeldError):
        readers.hold("r", "two:2", 30.0, [Place(flights), Place(ORDERS)], take=True)
    assert readers.held == 1
    readers.hold("r", "three:3", 10.0, [Place(flights)], take=True)
    clock.now += 20  # the lease of the third program has ended, not that of the first one
    with pytest.raises(hub.ReaderHeldError):
        readers.hold("r", "two:2", 30.0, [Place(flights), Place(ORDERS)], take=True)
    with pytest.raises(sej.OffsetBeyondEndError):
        readers.hold("r", "two:2", 30.0, [Place(flights, 99, reset=True)], take=True)
    assert readers.hold("r", "three:3", 10.0, [Place(flights, 3)]) == [Kept(3, True)]
    assert readers.held == 2


def test_where_a_reader_starts_and_how_it_is_reset(readers: Readers) -> None:
    assert readers.hold("r", A, 30.0, place(3), take=True) == [(3, False)]
    assert readers.hold("r", A, 30.0, place(6)) == [(6, True)]
    assert readers.hold("r", A, 30.0, place(4)) == [(6, True)]
    assert readers.hold("r", A, 30.0, place(4, reset=True)) == [(4, True)]
    assert readers.hold("r", A, 0.0, place()) == [(4, True)]
    assert readers.hold("r", B, 30.0, place(2, reset=True), take=True) == [(2, True)]
    with pytest.raises(sej.OffsetBeyondEndError):
        readers.hold("r", B, 30.0, place(11))


def test_a_recreated_journal_is_another_one(store: hub.Store, readers: Readers) -> None:
    path = Path(store.root) / "EWR.orders"
    readers.hold("r", A, 30.0, place(5), take=True)
    readers.hold("r", A, 30.0, place(5))
    shutil.rmtree(path)
    fill(path, sample(3))
    for _ in range(2):
        with pytest.raises(sej.JournalNotFoundError, match="removed or re-created"):
            readers.hold("r", A, 30.0, place(6))
    assert sej.read_offset(path, "r") is None
    assert readers.hold("r", A, 30.0, place(), take=True) == [(0, False)]
    shutil.rmtree(path)
    fill(path, sample(3))
    assert readers.hold("r", A, 30.0, place(1, reset=True), take=True) == [(1, True)]


def test_a_journal_that_was_recreated_while_the_hub_was_stopped_is_another_one(store: hub.Store) -> None:
    """Otherwise the holder would skip the first messages of the new journal."""
    path = Path(store.root) / "EWR.orders"
    for count in (10, 20):
        readers = Readers(store)
        readers.hold("r", A, 30.0, place(), take=True)
        readers.hold("r", A, 30.0, place(5))
        readers.close()
        shutil.rmtree(path)
        fill(path, sample(count))
        again = Readers(store)
        for _ in range(2):
            with pytest.raises(sej.JournalNotFoundError, match="removed or re-created"):
                again.hold("r", A, 30.0, place(8))
        assert sej.read_offset(path, "r") is None
        assert again.hold("r", A, 30.0, place(), take=True) == [(0, False)]
        again.hold("r", A, 0.0, place())
        again.close()
    readers = Readers(store)
    readers.hold("r", A, 30.0, place(), take=True)
    readers.close()
    (path / "id").write_bytes(b"damaged")
    again = Readers(store)
    with pytest.raises(sej.JournalNotFoundError):
        again.hold("r", A, 30.0, place(8))
    assert again.hold("r", A, 30.0, place(2), take=True) == [(2, False)]
    assert again.hold("r", A, 30.0, place(3)) == [(3, True)]
    again.close()


def test_names_with_another_meaning_are_refused(store: hub.Store, readers: Readers) -> None:
    path = Path(store.root) / "EWR.orders"
    with sej.open_queue(path, "jobs") as queue:
        queue.put(b"x")
    with hub.Merge(store.root, "merged", 0.0) as merge:
        assert sum(1 for _ in merge) == 11
        merge.commit()
    for name in ("jobs", "merged", "../x", "", ".x"):
        with pytest.raises(sej.InvalidNameError):
            readers.hold(name, A, 30.0, place(), take=True)
    with pytest.raises(sej.JournalNotFoundError):
        readers.hold("r", A, 30.0, [Place(Source("EWR", "nothing"))], take=True)
    for lease_s, holder in ((601.0, A), (-1.0, A), (30.0, ""), (30.0, "x" * 65), (30.0, "x\n")):
        with pytest.raises(ValueError, match=r"lease_s|holder"):
            readers.hold("r", holder, lease_s, place(), take=True)


def test_a_damaged_record_is_named(store: hub.Store, readers: Readers) -> None:
    readers.hold("r", A, 30.0, place(), take=True)
    readers.close()
    record = Path(store.root) / ".readers" / "r.json"
    record.write_bytes(record.read_bytes().replace(b"EWR", b"EWS"))
    with pytest.raises(hub.HubError, match="not a record of the holders of a reader") as caught:
        Readers(store).hold("r", A, 30.0, place())
    assert caught.value.path == str(record)


# --- over the wire


def test_a_reader_continues_where_it_committed(tmp_path: Path) -> None:
    fill(tmp_path / "EWR.orders", sample(10))
    with serving(tmp_path) as (_, server), Client(server.address) as client:
        with Reader(client, "report", *ORDERS, start=2, wait=False) as reader:
            assert (reader.offset, reader.is_new) == (2, True)
            assert [m for batch in reader for m in batch] == sample(10)[2:]
            reader.commit(7)
            with pytest.raises(hub.ReaderHeldError, match=r"^hub at 127.0.0.1:\d+: reader 'report' of EWR.orders is"):
                Reader(client, "report", *ORDERS)
            (journal,) = hub.stats(tmp_path)
            assert journal.lag == {"report": 3}
            assert server.service.readers.held == 1
        with Reader(client, "report", *ORDERS, wait=False) as reader:
            assert (reader.offset, reader.is_new) == (7, False)
            assert [m for batch in reader for m in batch] == sample(10)[7:]
            reader.commit()
            with pytest.raises(sej.OffsetBeyondEndError):
                reader.commit(11)
        with pytest.raises(sej.ClosedError):
            reader.commit()
        assert sej.read_offset(tmp_path / "EWR.orders", "report") == 10


def test_the_holder_of_a_reader_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "EWR.orders", sample(10))

    def line(*words: str) -> str:
        done = inside(monkeypatch, "hub", "ls", str(tmp_path), *words)
        assert (done.code, done.err) == (0, "")
        return done.out.decode().rstrip()

    def row() -> dict[str, object]:
        return dict(json.loads(line("--json"))["holders"])

    with serving(tmp_path) as (_, server), Client(server.address) as client:
        reader = Reader(client, "report", *ORDERS, lease_s=60)
        me = reader._held._holder.rpartition(":")[0]
        assert me.endswith(f":{os.getpid()}")
        assert line().endswith(f"  report 10 behind, held by {me} with a lease of 60 s")
        assert row() == {"report": {"holder": me, "lease_s": 60.0, "held": True}}
        with pytest.raises(hub.ReaderHeldError, match=f"is held by {me}, whose lease ends in"):
            Reader(client, "report", *ORDERS)
        with server.service.readers._named("report") as name:
            name.held[ORDERS].until = 0.0
        server.service.readers.sweep()  # the lease has ended
        assert line().endswith(f"  report 10 behind, last held by {me}")
        reader.close()
        assert line().endswith("  report 10 behind")
        assert row() == {"report": None}
    with sej.Offset(tmp_path / "EWR.orders", "report"):
        assert f"  report 10 behind, held by pid={os.getpid()} " in line()
    (tmp_path / ".readers" / "report.json").write_text("damaged")
    assert hub.stats(tmp_path)[0].holders == {}


def test_retention_waits_for_a_reader(tmp_path: Path) -> None:
    fill(tmp_path / "EWR.orders", sample(200), segment_bytes=500)
    with (
        serving(tmp_path) as (_, server),
        Client(server.address) as client,
        Reader(client, "report", *ORDERS) as reader,
    ):
        assert hub.clean(tmp_path, max_bytes=0)[ORDERS] == []
        reader.commit(100)
        assert hub.clean(tmp_path, max_bytes=0)[ORDERS]
        assert sej.Journal(tmp_path / "EWR.orders").first_offset <= 100


def test_follow_waits_and_a_lost_reader_ends(tmp_path: Path) -> None:
    fill(tmp_path / "EWR.orders", sample(1))
    with serving(tmp_path) as (store, server), Client(server.address) as client:
        reader = Reader(client, "report", *ORDERS, lease_s=0.5)
        found = iter(reader)
        assert next(found) == sample(1)
        with server.service.readers._named("report") as name:  # as if the lease had ended and another program took it
            name.held[ORDERS].holder = "another"
        until(lambda: reader._held._failure is not None)
        store.put(*ORDERS, [sample(2)[1]])
        with pytest.raises(sej.LeaseLostError):
            next(found)
        with pytest.raises(sej.LeaseLostError):
            reader.commit()
        reader.close()
        assert sej.read_offset(tmp_path / "EWR.orders", "report") is None


def test_roles_and_quotas_apply(tmp_path: Path) -> None:
    fill(tmp_path / "EWR.orders", sample(10))
    tokens = {role: make_token() for role in ("read", "reader", "write", "append", "view")}
    grants = [Grant(hash_token(tokens[role]), role, ("EWR",)) for role in tokens]  # type: ignore[arg-type]
    with serving(tmp_path, tokens=Tokens(grants)) as (_, server):
        for role in ("read", "write", "append", "view"):
            said = r"does not let you keep a reader's offset .*--reader`\) for 'EWR'"
            with Client(server.address, token=tokens[role]) as client, pytest.raises(hub.AccessError, match=said):
                Reader(client, "r", *ORDERS)
        with Client(server.address, token=tokens["reader"]) as client:
            assert [listed.journal_dir for listed in client.journals()] == ["orders"]
            with Reader(client, "r", *ORDERS, wait=False) as reader:
                assert sum(map(len, reader)) == 10
            with pytest.raises(hub.AccessError):
                Reader(client, "r", "LGA", "orders")
    size = sum(segment.size for segment in sej.Journal(tmp_path / "EWR.orders").segments)
    with connected(tmp_path, store={"max_client_bytes": size}) as (_, client):
        with pytest.raises(hub.QuotaError):
            Reader(client, "new", *ORDERS)
        Reader(client, "r", *ORDERS).close()


def test_a_call_for_too_many_or_no_journals_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "EWR.orders", sample(1))
    with serving(tmp_path, tokens=Tokens([])) as (_, server), Client(server.address) as client:
        for count, says in ((0, "places must have at least 1"), (4097, "places must have at most 4096 journals")):
            places = [pb.Place(ClientID="EWR", JournalDir="orders")] * count
            request = pb.HoldRequest(Reader="r", Holder=A, LeaseMs=1000, Take=True, Places=places)
            with pytest.raises(sej.InvalidMessageError, match=says):
                client.call("Hold", request, pb.HoldResponse, timeout_s=60.0)
        assert server.service.readers._names == {}


def test_many_journals_are_taken_and_committed_together(tmp_path: Path) -> None:
    sources = [Source("EWR", f"j{number}") for number in range(20)]
    for source in sources:
        fill(tmp_path / source.name, sample(5))
    with serving(tmp_path) as (_, server), Client(server.address) as client:
        calls = []

        class Counting:
            def hold(self, request: pb.HoldRequest) -> list[Kept]:
                calls.append(request)
                return client.hold(request)

        held = HeldReaders(Counting(), "all", 30.0)
        assert held.take(dict.fromkeys(sources)) == dict.fromkeys(sources, (0, False))
        held.commit(dict.fromkeys(sources, 4))
        assert len(calls) == 2
        held.close()
        held.close()
    assert {sej.read_offset(tmp_path / source.name, "all") for source in sources} == {4}


def test_a_journal_that_was_removed_ends_no_other(tmp_path: Path) -> None:
    sources = [Source("EWR", f"j{number}") for number in range(4)]
    for source in sources:
        fill(tmp_path / source.name, sample(5))
    with serving(tmp_path) as (_, server), Client(server.address) as client:
        held = HeldReaders(client, "all", 0.5)
        held.take(dict.fromkeys(sources))
        shutil.rmtree(tmp_path / sources[1].name)
        until(lambda: not held.holds(sources[1]))  # the renewal has noticed
        held.commit({sources[0]: 3, sources[2]: 3})
        shutil.rmtree(tmp_path / sources[0].name)
        with pytest.raises(sej.JournalNotFoundError, match=r"EWR\.j0 was removed"):
            held.commit({sources[0]: 4, sources[2]: 4, sources[3]: 4})
        held.check()
        fill(tmp_path / sources[0].name, sample(3))
        assert held.take({sources[0]: 1})[sources[0]] == (1, False)
        held.close()
    assert [sej.read_offset(tmp_path / source.name, "all") for source in sources[2:]] == [4, 4]


# --- crashes


@pytest.mark.long
def test_every_message_is_read_though_the_hub_is_killed_again_and_again(tmp_path: Path, port: int) -> None:
    fill(tmp_path / "EWR.orders", [sej.Message(at, at, 0, b"", b"%d" % at) for at in range(300)])
    address = f"127.0.0.1:{port}"
    served = Killed("--address", address, tmp_path)
    done, found = threading.Event(), []

    def read() -> None:
        with Client(address, timeout_s=5.0) as client, Reader(client, "r", *ORDERS, lease_s=2.0) as reader:
            while not done.is_set():
                for message in client.get("orders", reader.offset, 7, client_id="EWR"):
                    found.append(message.offset)
                    reader.offset = message.offset + 1
                reader.commit()
                if reader.offset == 300:
                    return

    def patient() -> None:
        while not done.is_set():
            try:
                read()
            except (hub.UnavailableError, hub.ReaderHeldError):  # held: the hub waits for the holder before the kill
                done.wait(0.02)
                continue
            return

    thread = Worker(patient)
    try:
        for _ in range(4):
            seen = len(found)
            until(lambda seen=seen: len(found) > seen or not thread.is_alive())  # type: ignore[misc]
            served.kill()
            kept = sej.read_offset(tmp_path / "EWR.orders", "r")
            assert kept is None or kept <= max(found) + 1
            served.start()
        thread.result()
    finally:
        done.set()
        served.kill()
    assert sorted(set(found)) == list(range(300))
    assert sej.read_offset(tmp_path / "EWR.orders", "r") == 300


@pytest.mark.parametrize("others", [0, 5, 9])
def test_a_reader_of_messages_that_the_hub_lost_does_not_wait_for_others(
    tmp_path: Path, port: int, others: int
) -> None:
    """As after a hub's disk was restored: messages that get the same offsets would be left out."""
    root, address = tmp_path / "hub", f"127.0.0.1:{port}"
    fill(root / "EWR.orders", sample(5))
    shutil.copytree(root / "EWR.orders", tmp_path / "older")
    with hub.Store(root) as store:
        store.put("EWR", "orders", sample(5, 5))
    with Client(address) as client:
        with serving(root, address):
            reader = Reader(client, "report", "EWR", "orders")
            batches = iter(reader)
            while reader.offset < 10:
                next(batches)
        shutil.rmtree(root / "EWR.orders")
        shutil.copytree(tmp_path / "older", root / "EWR.orders")
        if others:  # at least as many as were lost
            write(root / "EWR.orders", [b"other"] * others)
        found = r"message 9 of EWR\.orders is not the one" if others else r"EWR\.orders ends at 5"
        with serving(root, address):
            with pytest.raises(sej.OffsetBeyondEndError, match=f"next offset is 10, but {found}"):
                next(batches)
            reader.close()
