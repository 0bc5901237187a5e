"""Stores of one root that give journals to each other, as the processes of a hub do; here within one process."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import hub
import sej
from hub.batch import Messages
from hub.jobs import Jobs, Staged
from hub.naming import Source
from sej import Message
from sej.system.checksum import crc32c
from sej.writing.writer import Writer
from shard.commits.staging import Owner, prepare_task
from tests.hub.support import until
from tests.hub.test_jobs import contents, rows, values_of
from tests.sej.support import sample

A = Source("a", "j")


class Others:
    """The other stores, which are asked by calls."""

    def __init__(self, counts: Path) -> None:
        self.counts = str(counts)
        self.stores: list[hub.Store] = []
        self.before: Callable[[], object] = lambda: None
        self.asked = 0

    def ask(self, source: Source) -> bool:
        self.asked += 1
        self.before()
        released = [store.release(*source) for store in self.stores]
        return any(released)


@contextmanager
def together(tmp_path: Path, count: int = 2, **options: int) -> Iterator[list[tuple[hub.Store, Others]]]:
    """Stores of the root ``hub``; each knows the others."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            others = Others(tmp_path / "counts")
            store = hub.Store(tmp_path / "hub", siblings=others, **options)  # type: ignore[arg-type]
            found.append((stack.enter_context(store), others))
        for store, others in found:
            others.stores = [each for each, _ in found if each is not store]
        yield found


def test_a_journal_follows_its_client_from_store_to_store(tmp_path: Path) -> None:
    messages = sample(40)
    with together(tmp_path) as ((one, _), (two, _)):
        for number in range(4):
            store, other = (one, two) if number % 2 else (two, one)
            assert store.put(*A, messages[number * 10 : number * 10 + 10]) == number * 10 + 10
            assert (store.open_writers, other.open_writers) == (1, 0)
        assert one.get(*A, 0) == two.get(*A, 0) == messages
        assert two.end_offset(*A) == one.end_offset(*A) == 40


def test_a_journal_that_another_program_writes_is_refused_immediately(tmp_path: Path) -> None:
    with together(tmp_path) as ((one, others), _):
        one.put(*A, sample(1))
        one.release(*A)
        with sej.Writer(tmp_path / "hub" / "a.j"), pytest.raises(hub.UnavailableError, match="is held by pid="):
            one.put(*A, sample(2)[1:])
        assert others.asked == 1


def test_threads_of_several_stores_put_the_same_messages(tmp_path: Path) -> None:
    """As connections of one client that sends again and again: each message is stored once, in order."""
    messages = sample(300)
    with together(tmp_path, 3) as found:
        failures: list[BaseException] = []

        def send(store: hub.Store) -> None:
            try:
                for first in range(0, 300, 10):
                    store.put(*A, messages[first : first + 10])
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=send, args=(store,)) for store, _ in found for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert found[0][0].get(*A, 0) == messages
        assert sum(store.counters.messages for store, _ in found) == 300


def test_a_store_that_asks_while_it_is_asked_waits_for_neither(tmp_path: Path) -> None:
    """Both wait for a third one: neither has a writer that the other could wait for."""
    with together(tmp_path, 3) as ((one, others), (two, _), (three, _)):
        three.put(*A, sample(1))
        answers: list[bool] = []
        others.before = lambda: answers.append(one.release(*A))  # as another process asks this one meanwhile
        one.put(*A, sample(2)[1:])
        assert answers == [True], "it is opening it: try again"
        assert two.release(*A) is False


def test_a_journal_is_given_after_the_calls_in_progress_and_before_the_next(tmp_path: Path) -> None:
    with together(tmp_path) as ((one, _), _):
        one.put(*A, sample(1))
        order: list[str] = []
        with one.writing(A) as writer:
            giver = threading.Thread(target=lambda: order.append(f"given {one.release(*A)}"))
            giver.start()
            until(lambda: A in one._pool._leaving)
            next_one = threading.Thread(target=lambda: order.append(f"put {one.put(*A, sample(3)[2:])}"))
            next_one.start()
            writer.append_messages(sample(2)[1:])
            order.append("appended")
        giver.join()
        next_one.join()
        assert order == ["appended", "given True", "put 3"]


def test_a_journal_that_another_process_has_just_created(tmp_path: Path) -> None:
    """The batch is compared with what is there, as if the journal had been there before."""
    messages = sample(15)

    class Late(hub.Store):
        before_open: Callable[[], object] = staticmethod(lambda: None)

        def _open_writer(self, source: Source, first_offset: int) -> Writer:
            self.before_open()
            return super()._open_writer(source, first_offset)

    def create() -> None:
        with sej.Writer(tmp_path / "a.j") as writer:
            writer.append_messages(messages[:10])

    with Late(tmp_path) as store:
        store.before_open = create
        assert store.put(*A, messages[5:]) == 15
        assert store.get(*A, 0) == messages
    (tmp_path / "a.j").rename(tmp_path / "kept")
    with Late(tmp_path) as store:
        store.before_open = create
        with pytest.raises(hub.GapError, match="messages 10 to 11 are missing"):
            store.put(*A, messages[12:])


def test_a_quota_is_for_all_stores_together(tmp_path: Path) -> None:
    rng = random.Random(5)
    sent = 0
    with together(tmp_path, 3, max_client_bytes=20_000) as found:

        def fill_up() -> None:
            nonlocal sent
            for number in range(1000):
                rng.choice(found)[0].put("a", f"j{number}", [Message(0, 1, 0, b"", bytes(500))])
                sent += 1

        with pytest.raises(hub.QuotaError, match="of 20000 bytes used"):
            fill_up()
        with pytest.raises(hub.QuotaError):
            found[0][0].put("a", "last", [Message(0, 1, 0, b"", bytes(500))])
        found[1][0].put("another", "j", [Message(0, 1, 0, b"", bytes(500))])
    assert sent == 20_000 // 526


@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("late", ["put", "stage"])
def test_a_quota_counts_what_another_thread_is_just_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: int, late: str
) -> None:
    """Its bytes are admitted, and not in a file yet when the second batch is admitted."""
    refused: list[hub.QuotaError] = []

    def put(store: hub.Store) -> None:
        try:
            store.put("a", "second", [Message(0, 1, 0, b"", bytes(500))])
        except hub.QuotaError as error:
            refused.append(error)

    with together(tmp_path, stores, max_client_bytes=1000) as found:
        (one, _), (two, _) = found[0], found[-1]
        other = threading.Thread(target=put, args=(two,))

        def meanwhile() -> None:
            monkeypatch.undo()
            other.start()
            other.join(0.05)  # it waits for this thread, or is just about to

        def append(self: Messages, writer: Writer) -> None:
            meanwhile()
            self.append(writer)

        def prepare(folder: str, owner: Owner) -> None:
            meanwhile()
            prepare_task(folder, owner)

        if late == "put":
            monkeypatch.setattr(Messages, "append", append)
            one.put("a", "first", [Message(0, 1, 0, b"", bytes(500))])
        else:
            monkeypatch.setattr("hub.jobs.prepare_task", prepare)
            Jobs(one).stage("a", "01", "02", 0, 0, rows([bytes(500)]))
        other.join()
        assert [error.reason for error in refused] == [
            f"client 'a' would exceed its quota: {526 + (late == 'stage')} of 1000 bytes used, 526 more sent; raise the"
            " quota, or let readers catch up so that retention can remove segments"
        ]
        two.put("a", "third", [Message(0, 1, 0, b"", bytes(400))])


def test_a_part_of_staged_rows_that_arrives_twice_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose connection broke sends the part again, to another process, before the first one has written it."""
    data = rows(values_of(0))
    half = len(data) // 2
    with together(tmp_path) as ((one, _), (two, _)):
        late, early = Jobs(one), Jobs(two)

        def meanwhile(folder: str, owner: Owner) -> None:
            monkeypatch.undo()
            prepare_task(folder, owner)
            early.stage("a", "01", "02", 0, 0, data[:half])
            assert early.stage("a", "01", "02", 0, half, data[half:]) == len(data)
            early.seal("a", "01", [Staged("02", 0, 20, len(data), crc32c(data))])

        monkeypatch.setattr("hub.jobs.prepare_task", meanwhile)
        late.stage("a", "01", "02", 0, 0, data[:half])
        assert late.commit("a", "01", "orders", 0, "app", 1, [Staged("02", 0, 20, len(data), crc32c(data))])
        assert not early.commit("a", "01", "orders", 0, "app", 1, [])
    assert contents(tmp_path / "hub") == {"a.orders": values_of(0)}
