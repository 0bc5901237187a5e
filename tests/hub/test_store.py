"""The store: idempotent, durable, refusing what does not belong, one lock a directory."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hub
import sej
import shard
from sej.system.disk import OS, File
from tests.crash.disk import CrashDisk
from tests.hub.support import at, fill
from tests.sej.hooks import HookedDisk, until
from tests.sej.support import commit, packed, sample, segments

Put = Callable[[hub.Store, str, str, list[sej.Message]], int]
JOURNAL = hub.Source("a", "j")


def put_messages(store: hub.Store, client: str, journal: str, messages: list[sej.Message]) -> int:
    return store.put(client, journal, messages)


def put_bytes(store: hub.Store, client: str, journal: str, messages: list[sej.Message]) -> int:
    return store.put_encoded(client, journal, packed(messages))


@pytest.fixture(params=[put_messages, put_bytes])
def put(request: pytest.FixtureRequest) -> Put:
    found: Put = request.param
    return found


def test_messages_arrive_exactly(tmp_path: Path, put: Put) -> None:
    messages = [*sample(300), sej.Message(300, sej.NO_TIMESTAMP, 255, b"", b"")]
    with hub.Store(tmp_path / "hub") as store:
        assert put(store, "client-a", "orders.3.000", messages) == 301
        assert store.get("client-a", "orders.3.000", 0, 1000) == messages
        assert store.get("client-a", "orders.3.000", 299, 1) == messages[299:300]
        assert store.get("client-a", "orders.3.000", 301) == []
        assert store.end_offset("client-a", "orders.3.000") == 301
        assert store.clients() == ["client-a"]
        assert store.journals("client-a") == ["orders.3.000"]
    assert b"".join(segments(tmp_path / "hub" / "client-a.orders.3.000").values()) == packed(messages)


def test_resend_changes_nothing(tmp_path: Path, put: Put) -> None:
    messages = sample(10)
    with hub.Store(tmp_path) as store:
        assert put(store, "a", "j", messages[:6]) == 6
        assert put(store, "a", "j", messages[:6]) == 6
        assert put(store, "a", "j", messages[2:9]) == 9
        assert put(store, "a", "j", messages[4:5]) == 9
        assert put(store, "a", "j", messages) == 10
        assert store.counters.resent == 6 + 4 + 1 + 9
        assert store.counters.messages == 10
    assert b"".join(segments(tmp_path / "a.j").values()) == packed(messages)


def test_a_gap_is_refused_with_the_expected_offset(tmp_path: Path, put: Put) -> None:
    messages = sample(10)
    with hub.Store(tmp_path) as store:
        put(store, "a", "j", messages[:3])
        for wrong in (messages[5:], [*messages[3:5], *messages[6:]], [*messages[3:5], *messages[:2]]):
            with pytest.raises(hub.GapError) as refused:
                put(store, "a", "j", wrong)
            assert refused.value.expected == 3
            assert store.end_offset("a", "j") == 3
        with pytest.raises(hub.GapError) as refused:
            put(store, "a", "new", [messages[4], messages[9]])
        assert refused.value.expected == 4
        assert store.counters.refusals["GapError"] == 4
    assert not (tmp_path / "a.new").exists()


def test_other_bytes_under_a_known_offset_are_refused(tmp_path: Path, put: Put) -> None:
    messages = sample(10)
    known = messages[4]
    others = known._replace(value=b"x"), known._replace(key=b"x"), known._replace(type=77), known._replace(timestamp=1)
    for number, other in enumerate(others):
        with hub.Store(tmp_path / str(number)) as store:
            put(store, "a", "j", messages[:5])
            forged = [*messages[:4], other, *messages[5:]]
            with pytest.raises(hub.ConflictError, match="offset 4"):
                put(store, "a", "j", forged)
            assert store.get("a", "j", 0) == messages[:5]
            assert store.end_offset("a", "j") == 5


def test_below_the_hubs_retention_a_resend_is_accepted_unseen(tmp_path: Path, put: Put) -> None:
    messages = sample(40)
    with hub.Store(tmp_path, segment_bytes=200) as store:
        put(store, "a", "j", messages)
    with hub.Store(tmp_path) as store:
        first = sej.Journal(tmp_path / "a.j").first_offset
        assert first == 0
        hub.clean(tmp_path, max_bytes=400)
        first = sej.Journal(tmp_path / "a.j").first_offset
        assert 0 < first < 40
        assert put(store, "a", "j", messages) == 40
        assert (store.counters.unseen, store.counters.resent) == (first, 40 - first)


@pytest.mark.parametrize(
    "message",
    [
        sej.Message(0, 0, 256, b"", b""), sej.Message(0, 0, 0, b"k" * 128, b""), sej.Message(0, 2**63, 0, b"", b""),
        sej.Message(-1, 0, 0, b"", b""), sej.Message(2**63, 0, 0, b"", b""),
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_the_format_leaves_nothing(tmp_path: Path, message: sej.Message) -> None:
    with hub.Store(tmp_path) as store:
        with pytest.raises((sej.InvalidMessageError, hub.GapError)):
            store.put("a", "j", [message])
        assert store.sources() == []
        store.put("a", "j", sample(1))
        with pytest.raises((sej.InvalidMessageError, hub.GapError)):
            store.put("a", "j", [message._replace(offset=1) if message.offset == 0 else message])
        assert store.end_offset("a", "j") == 1


def test_wrong_types_are_named(tmp_path: Path) -> None:
    with hub.Store(tmp_path) as store:
        with pytest.raises(TypeError, match="client_id must be str"):
            store.put(b"a", "j", sample(1))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="value"):
            store.put("a", "j", [sej.Message(0, 0, 0, b"", "text")])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="offset"):
            store.put("a", "j", [sej.Message("0", 0, 0, b"", b"")])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_messages"):
            store.get("a", "j", 0, 0)
        for messages in ("text", b"text", None, sample(1)[0], [b"value"]):
            with pytest.raises(TypeError, match=r"must be (an iterable of|a) sej\.Message, got"):
                store.put("a", "j", messages)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 20, 26])
def test_bytes_that_are_not_whole_messages_are_refused(tmp_path: Path, cut: int) -> None:
    data = packed(sample(3))
    with hub.Store(tmp_path) as store:
        for journal in ("old", "new"):
            if journal == "old":
                store.put("a", journal, sample(1))
            with pytest.raises(sej.DecodeError):
                store.put_encoded("a", journal, data[:-cut])
            with pytest.raises(sej.DecodeError):
                store.put_encoded("a", journal, b"x" * cut)
        assert store.end_offset("a", "old") == 1
        assert store.sources() == [hub.Source("a", "old")]


@pytest.mark.parametrize("first", [2**63 - 2, 2**63 - 1, 2**63, 2**64 - 2])
@pytest.mark.parametrize("known", [False, True])
def test_offsets_that_no_journal_may_have_are_refused(tmp_path: Path, first: int, known: bool) -> None:
    parts = [first.to_bytes(8, "big"), ((first + 1) % 2**64).to_bytes(8, "big")]
    tail = packed([sej.Message(0, 1, 0, b"", b"value")])[8:]
    with hub.Store(tmp_path) as store:
        if known:
            store.put("a", "j", [sej.Message(2**63 - 3, 1, 0, b"", b"before")])
        with pytest.raises(sej.InvalidMessageError, match="must be 0 to 9223372036854775806"):
            store.put_encoded("a", "j", b"".join(part + tail for part in parts))
        assert store.end_offset("a", "j") == (2**63 - 2 if known else 0)
        assert store.sources() == ([hub.Source("a", "j")] if known else [])


def test_empty_batches_return_the_expected_offset(tmp_path: Path, put: Put) -> None:
    with hub.Store(tmp_path) as store:
        assert put(store, "a", "j", []) == 0
        assert store.sources() == []
        put(store, "a", "j", sample(4))
        assert put(store, "a", "j", []) == 4


def test_a_path_that_is_not_a_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    sej.Writer(tmp_path / "journal").close()
    for path in (tmp_path / "file", tmp_path / "journal"):
        with pytest.raises(sej.NotAJournalError):
            hub.Store(path)
    with pytest.raises(ValueError, match="max_open"):
        hub.Store(tmp_path / "hub", 0)


def test_a_directory_of_journals_does_not_become_a_root(tmp_path: Path) -> None:
    for name in ("plain/orders", "mixed/orders", "mixed/a.j", "old/EWR.orders", "old/EWR.3.005"):
        sej.Writer(tmp_path / name).close()
    with shard.Writer(shard.Path(tmp_path / "sharded", "orders", 1)) as writer:
        writer.append(b"1")
    for name, reason in (("plain", "'orders'"), ("mixed", "'orders'"), ("sharded", "sharded journals")):
        with pytest.raises(sej.NotAJournalError, match=rf"(?s){reason}.*create the file .hub in it"):
            hub.Store(tmp_path / name)
        assert not (tmp_path / name / ".hub").exists()
    with hub.Store(tmp_path / "old") as store:  # the original's roots have no marker
        assert store.clients() == ["EWR"]
    (tmp_path / "plain" / ".hub").touch()
    with hub.Store(tmp_path / "plain") as store:
        assert store.sources() == []


def test_closed_stores_say_so(tmp_path: Path) -> None:
    store = hub.Store(tmp_path)
    store.put("a", "j", sample(1))
    store.close()
    store.close()
    with pytest.raises(sej.ClosedError, match="the store is closed; open another one") as refused:
        store.put("a", "j", sample(2))
    assert refused.value.path == str(tmp_path)
    with sej.Writer(tmp_path / "a.j") as writer:  # its lock was let go
        assert writer.offset == 1


def test_a_directory_that_another_process_writes_is_unavailable(tmp_path: Path) -> None:
    with hub.Store(tmp_path) as store:
        with sej.Writer(tmp_path / "a.j"), pytest.raises(hub.UnavailableError, match="try again later"):
            store.put("a", "j", sample(1))
        assert store.put("a", "j", sample(1)) == 1


# --- many directories, many threads


def test_no_more_writers_than_allowed(tmp_path: Path) -> None:
    messages = sample(20)
    with hub.Store(tmp_path, max_open=4) as store, ThreadPoolExecutor(16) as pool:

        def client(number: int) -> int:
            for at in range(0, 20, 5):
                store.put(f"c{number}", "j", messages[at : at + 5])
                assert store.open_writers <= 4
            return store.end_offset(f"c{number}", "j")

        assert list(pool.map(client, range(40))) == [20] * 40
        assert store.open_writers <= 4
    for number in range(40):
        assert list(sej.Scanner(tmp_path / f"c{number}.j")) == messages


def test_concurrent_batches_of_one_directory_share_syncs(tmp_path: Path) -> None:
    syncing, go_on = threading.Event(), threading.Event()
    syncs: list[str] = []

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            syncs.append(file.path)
            if len(syncs) == 1:
                syncing.set()
                assert go_on.wait(30)

    messages = sample(9)
    disk = HookedDisk(hook, OS)
    with hub.Store(tmp_path, disk=disk) as store, ThreadPoolExecutor(9) as pool:
        first = pool.submit(store.put, "a", "j", messages[:1])
        assert syncing.wait(30)
        # The first is in its sync; eight more come, each one a resend of all before it, and share the next one.
        others = [pool.submit(store.put, "a", "j", messages[:count]) for count in range(2, 10)]
        # All nine messages are in the file before the first sync ends, so one more sync is enough for all of them.
        writer = store._pool._entries[hub.Source("a", "j")].writer
        assert writer is not None
        until(lambda: writer.offset == 9)
        go_on.set()
        assert first.result() >= 1
        assert all(other.result() >= 2 for other in others)
        assert len(syncs) == 2
        assert store.end_offset("a", "j") == 9


# --- disks that fail


@pytest.mark.parametrize(
    ("fails", "number", "refusal"),
    [("sync", errno.EIO, hub.UnavailableError), ("write", errno.ENOSPC, hub.DiskLowError)],
)
def test_a_disk_that_fails_acknowledges_nothing_and_the_next_put_finds_what_is_there(
    tmp_path: Path, fails: str, number: int, refusal: type[hub.HubError]
) -> None:
    fail = threading.Event()

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if fail.is_set() and verb == fails and file is not None and file.path.endswith(".jnl"):
            raise OSError(number, os.strerror(number))

    with hub.Store(tmp_path, disk=HookedDisk(hook, OS)) as store:
        store.put("a", "j", sample(2))
        fail.set()
        with pytest.raises(refusal, match="try again later"):
            store.put("a", "j", sample(4))
        fail.clear()
        assert store.put("a", "j", sample(4)) == 4
        assert store.put("a", "j", sample(6)) == 6
        assert store.get("a", "j", 0) == sample(6)


def test_low_water_refuses_before_the_disk_is_full(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub", min_free_bytes=1 << 60) as store:
        with pytest.raises(hub.DiskLowError, match=r"were sent, and \d+ must stay free; .* try again later"):
            store.put("a", "j", sample(1))
        assert store.sources() == []
        assert store.counters.refusals["DiskLowError"] == 1


def test_quotas_count_what_is_there(tmp_path: Path) -> None:
    messages = sample(40)
    size = len(packed(messages[:20]))
    with hub.Store(tmp_path, max_client_bytes={"*": size, "big": 10 * size}, segment_bytes=200) as store:
        store.put("a", "j", messages[:20])
        with pytest.raises(hub.QuotaError, match="'a'"):
            store.put("a", "k", messages[:1])
        assert store.put("a", "j", messages[:20]) == 20  # a resend needs no room
        store.put("big", "j", messages)
        hub.clean(tmp_path, max_bytes=300)  # retention makes room
        assert store.put("a", "j", messages[20:22]) == 22
    assert not (tmp_path / "a.k").exists()


def test_every_power_loss_keeps_what_was_acknowledged() -> None:
    """A miniature of every crash: three batches, two of them resent; whatever is lost was not acknowledged."""
    disk = CrashDisk()
    messages = sample(6)
    with hub.Store("/hub", disk=disk, min_free_bytes=0) as store:
        for count in (2, 4, 4, 6):
            disk.mark(store.put("a", "j", messages[:count]))
    states = 0
    for crash in disk.crash_states():
        states += 1
        acknowledged = max(crash.marks, default=0)
        with hub.Store("/hub", disk=crash.disk, min_free_bytes=0) as store:
            end = store.end_offset("a", "j")
            assert end >= acknowledged
            if end:
                assert store.get("a", "j", 0) == messages[:end]
            assert store.put("a", "j", messages) == 6
            assert store.get("a", "j", 0) == messages
    assert states > 10


def test_every_power_loss_while_a_gap_is_recorded() -> None:
    """Readers never meet a gap that is not recorded, and a resend completes it."""
    disk = CrashDisk()
    messages = [*sample(3), *sample(2, 10)]
    after = packed(messages[3:])
    with hub.Store("/hub", disk=disk, min_free_bytes=0) as store:
        disk.mark(store.put("a", "j", messages[:3]))
        disk.mark(store.put_encoded("a", "j", after, lost_from=3))
    for crash in disk.crash_states():
        with hub.Store("/hub", disk=crash.disk, min_free_bytes=0) as store:
            end = store.end_offset("a", "j")
            assert end >= max(crash.marks, default=0)
            if end:
                assert store.get("a", "j", 0) == [message for message in messages if message.offset < end]
            store.put("a", "j", messages[:3])
            assert store.put_encoded("a", "j", after, lost_from=3) == 12
            assert store.get("a", "j", 0) == messages


# --- looking


def test_stats_say_how_far_everybody_is(tmp_path: Path) -> None:
    with hub.Store(tmp_path) as store:
        store.put("a", "j", sample(10))
        store.put("b", "k", sample(5, 100))
    commit(tmp_path / "a.j", "billing", 7)
    sej.Offset(tmp_path / "b.k", "billing").close()
    first, second = hub.stats(tmp_path)
    assert (first.source, first.first_offset, first.end_offset, first.messages) == (hub.Source("a", "j"), 0, 10, 10)
    assert first.size == len(packed(sample(10)))
    assert first.lag == {"billing": 3}
    assert second.lag == {"billing": 5}
    assert second.last_arrival_ns is not None
    with pytest.raises(sej.JournalNotFoundError):
        hub.stats(tmp_path / "nothing")


def test_a_directory_that_the_disk_refuses_does_not_affect_others(tmp_path: Path) -> None:
    for client in ("a", "b"):
        fill(tmp_path / f"{client}.j", sample(100), segment_bytes=200)
    shutil.rmtree(tmp_path / "a.j" / "ofs")
    (tmp_path / "a.j" / "ofs").write_text("")
    assert [journal.error is None for journal in hub.stats(tmp_path)] == [False, True]
    done = hub.clean(tmp_path, max_bytes=0)
    assert isinstance(done[hub.Source("a", "j")], sej.SejError)
    assert len(done[hub.Source("b", "j")]) > 5


def test_a_relative_root_means_the_directory_of_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with hub.Store("hub", max_open=1) as store:
        store.put("a", "x", [at(0, 1)])
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.put("b", "x", [at(0, 2)])
        store.put("a", "x", [at(1, 3)])
        assert store.clients() == ["a", "b"]
    monkeypatch.chdir(tmp_path)
    with hub.Merge("hub", "report") as merge:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert [message.timestamp for _, message in merge] == [1, 2, 3]
        merge.commit()
    assert list((tmp_path / "elsewhere").iterdir()) == []


class TestAJournalThatIsRemovedWhileItsWriterIsOpen:
    """The caller is asked to try again, and then finds what is there, whatever it sends."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[hub.Store]:
        with hub.Store(tmp_path) as store:
            store.put("a", "j", sample(6))
            shutil.rmtree(tmp_path / "a.j")
            yield store

    @pytest.mark.parametrize("first", [0, 3, 6, 9])
    def test_put(self, store: hub.Store, put: Put, first: int) -> None:
        batch = sample(12)[first : first + 3]
        with pytest.raises(hub.UnavailableError, match="try again later"):
            put(store, "a", "j", batch)
        assert put(store, "a", "j", batch) == first + 3
        assert store.get("a", "j", first) == batch

    def test_end_offset(self, store: hub.Store) -> None:
        with pytest.raises(hub.UnavailableError, match="try again later"):
            store.end_offset("a", "j")
        assert store.end_offset("a", "j") == 0

    def test_one_that_is_created_again(self, tmp_path: Path, store: hub.Store, put: Put) -> None:
        fill(tmp_path / "a.j", sample(2))
        with pytest.raises(hub.UnavailableError, match="try again later"):
            put(store, "a", "j", sample(3))
        assert put(store, "a", "j", sample(3)) == 3
