"""The copier: what it copies, where it continues, what it refuses, and what it survives."""

import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import hub
import sej
from hub.wire import Client, Copier, JournalState, Progress, Server, Tokens
from tests.hub.support import connected, fill, is_prefix, run, same_bytes, serving, start
from tests.hub.support import until as until_true
from tests.hub.transport import Pipe, Transport
from tests.sej.hooks import Worker, script
from tests.sej.support import flip, packed, sample, segments


def until(true: threading.Event, look: object = None) -> None:
    assert true.wait(60), look


@contextmanager
def running(copier: Copier) -> Iterator[None]:
    stop = threading.Event()
    runner = Worker(partial(copier.run, stop))
    yield
    stop.set()
    runner.result()


def test_a_tree_of_shards_arrives_byte_for_byte(tmp_path: Path) -> None:
    for shard in range(4):
        fill(tmp_path / "tree" / f"orders.2.00{shard}", sample(500, shard * 1000), segment_bytes=3000)
    (tmp_path / "tree" / ".workers").mkdir()
    with connected(tmp_path / "hub") as (store, client), Copier(tmp_path / "tree", client) as copier:
        assert copier.run_once() == 2000
        assert copier.run_once() == 0
        assert (copier.progress.journals, copier.progress.messages) == (4, 2000)
        assert "2,000 messages" in str(copier.progress)
        assert store.journals("client-a") == [f"orders.2.00{shard}" for shard in range(4)]
        for shard in range(4):
            source, copy = tmp_path / "tree" / f"orders.2.00{shard}", tmp_path / "hub" / f"client-a.orders.2.00{shard}"
            same_bytes(source, copy)
            assert sej.Journal(copy).first_offset == shard * 1000
            assert sej.read_offset(source, "hub") == shard * 1000 + 500
            fill(source, sample(10, shard * 1000 + 500))
        assert copier.run_once() == 40
        same_bytes(tmp_path / "tree" / "orders.2.001", tmp_path / "hub" / "client-a.orders.2.001")


def test_a_torn_tail_is_not_copied(tmp_path: Path) -> None:
    fill(tmp_path / "journal", sample(5))
    file = tmp_path / "journal" / "jnl" / f"{0:016x}.jnl"
    file.write_bytes(file.read_bytes() + packed(sample(6))[-40:-10])
    with connected(tmp_path / "hub") as (store, client):
        assert Copier(tmp_path / "journal", client).run_once() == 5
        assert store.get("client-a", "journal", 0) == sample(5)


def test_another_journal_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    for number, other in enumerate(
        ([sej.Message(n, 7, 0, b"", b"other") for n in range(20)], sample(3), sample(10, 50))
    ):
        root = tmp_path / str(number)
        fill(root / "tree" / "bad", other)
        fill(root / "tree" / "good", sample(5))
        with connected(root / "hub") as (store, client), Copier(root / "tree", client) as copier:
            client.put("bad", sample(10))
            with pytest.raises((hub.ConflictError, hub.GapError), match="bad"):
                copier.run_once()
            assert list(copier.progress.failures) == ["bad"]
            assert "1 failing: bad" in str(copier.progress)
            assert store.get("client-a", "bad", 0) == sample(10)
            assert store.get("client-a", "good", 0) == sample(5)  # the others were copied


def test_retention_waits_in_every_directory_before_the_hub_is_reached(tmp_path: Path, port: int) -> None:
    tree = tmp_path / "tree"
    for name in ("a", "b"):
        fill(tree / name, sample(100), segment_bytes=200)
    client = Client(f"127.0.0.1:{port}", client_id="client-a", timeout_s=5.0)
    with client, Copier(tree, client) as copier, pytest.raises(hub.UnavailableError):
        copier.run_once()
    for name in ("a", "b"):
        assert sej.Journal(tree / name).clean(max_bytes=0) == []  # the reader "hub" is there and has nothing yet
        assert sej.read_offset(tree / name, "hub") == 0  # and has room for an offset if the disk is full later
    with connected(tmp_path / "hub") as (_, client):
        Copier(tree, client).run_once()
    assert len(sej.Journal(tree / "a").clean(max_bytes=0)) > 5


def test_a_journal_that_is_recreated_while_it_is_copied_is_noticed(tmp_path: Path) -> None:
    messages = [sej.Message(n, n, 0, b"", bytes(100_000)) for n in range(40)]
    fill(tmp_path / "journal", messages, segment_bytes=500_000)

    class Local:
        """Takes chunks one by one; behind the second the journal is another one."""

        def where(self, journal_dir: str, *, own: range) -> JournalState:
            return JournalState(False, 0, 0)

        def copy(
            self, journal_dir: str, chunks: Iterable[bytes], *, create: bool, accept_gaps_from: int | None
        ) -> Iterator[int]:
            for number, chunk in enumerate(chunks):
                if number == 1:
                    shutil.rmtree(tmp_path / "journal")
                    fill(tmp_path / "journal", [message._replace(timestamp=7) for message in messages])
                yield store.put_encoded("a", "journal", chunk)

    with hub.Store(tmp_path / "hub") as store:
        with pytest.raises(sej.SejError):
            Copier(tmp_path / "journal", Local()).run_once()
        kept = store.get("a", "journal", 0, 100)
    assert kept == messages[: len(kept)]


def test_messages_after_damage_are_not_left_out_silently(tmp_path: Path) -> None:
    fill(tmp_path / "journal", sample(100))
    shutil.rmtree(tmp_path / "journal" / "idx", ignore_errors=True)
    file = tmp_path / "journal" / "jnl" / f"{0:016x}.jnl"
    flip(file, len(packed(sample(50))) + 3, 0xFF)
    with connected(tmp_path / "hub") as (store, client):
        for _ in range(2):
            with Copier(tmp_path / "journal", client) as copier:
                for _ in range(2):
                    with pytest.raises(sej.CorruptionError):
                        copier.run_once()
        assert store.get("client-a", "journal", 0) == sample(50)


def deleted_before_it_was_copied(tree: Path, client: Client) -> None:
    """Make a journal whose messages 10 to 49 are on neither side."""
    fill(tree / "gap", sample(10))
    Copier(tree, client).run_once()
    fill(tree / "gap", sample(50, 10))
    with sej.Writer(tree / "gap") as writer:
        writer.end.rotate()
    fill(tree / "gap", sample(5, 60))
    (tree / "gap" / "jnl" / f"{0:016x}.jnl").unlink()


def test_a_follower_that_can_copy_nothing_ends_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = tmp_path / "tree"
    with connected(tmp_path / "hub") as (store, client):
        deleted_before_it_was_copied(tree, client)
        with Copier(tree, client, backoff_s=0.01) as copier, pytest.raises(hub.GapError, match="expects message 10"):
            copier.run(timeout=60.0)
        assert [record.levelname for record in caplog.records if "gap cannot be copied" in record.message] == ["ERROR"]
        fill(tree / "good", sample(3))
        follower = start("push", "--follow", "--client", "client-a", tree, client.address)
        until_true(lambda: store.end_offset("client-a", "good") == 3)
        assert follower.poll() is None  # the other journal is followed
        follower.terminate()
        out, err = (text.decode() for text in follower.communicate(timeout=60))
        assert (follower.returncode, out.split()) == (1, ["3"])
        assert "gap cannot be copied" in err


def test_a_gap_that_is_accepted_is_recorded_on_the_hub(tmp_path: Path) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "hub" / "client-a.gap"
    with connected(tmp_path / "hub") as (store, client):
        deleted_before_it_was_copied(tree, client)
        refused = run("push", "--client", "client-a", tree / "gap", client.address)
        assert refused.returncode == 1
        assert "let the hub record a gap: `sej hub push --accept-gaps`" in refused.stderr
        assert store.end_offset("client-a", "gap") == 10
        done = run("push", "--accept-gaps", "--client", "client-a", tree / "gap", client.address)
        assert (done.returncode, done.stdout) == (0, "5\n")
        fill(tree / "gap", sample(5, 65))
        with Copier(tree, client, accept_gaps=True) as copier:
            assert copier.run_once() == 5
        assert sej.read_offset(tree / "gap", "hub") == 70
        assert client.get("gap", 8) == [*sample(10)[8:], *sample(10, 60)]
        assert client.journals()[0].messages == 20
        with hub.Merge(tmp_path / "hub", "report") as merged:
            assert sum(1 for _ in merged) == 20
    assert sej.Journal(copy).verify() == []
    with sej.Scanner(copy) as scanner:
        assert list(scanner) == [*sample(10), *sample(10, 60)]
        (gap,) = scanner.gaps
    assert str(gap) == "messages 10 to 59 are lost: the client lost them before they were copied"


def test_gaps_that_a_repair_recorded_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    fill(path, sample(50))
    shutil.rmtree(path / "idx", ignore_errors=True)
    file = path / "jnl" / f"{0:016x}.jnl"
    for lost in (12, 30):
        flip(file, len(packed(sample(lost))) + 3, 0xFF)
    gaps = [(gap.start, gap.stop) for gap in sej.Journal(path).repair().gaps]
    assert gaps == [(12, 13), (30, 31)]
    with connected(tmp_path / "hub") as (store, client):
        with Copier(path, client) as copier, pytest.raises(hub.GapError, match=r"12 to 12 are missing.*--accept-gaps"):
            copier.run_once()
        assert store.end_offset("client-a", "journal") == 12
        with Copier(path, client, accept_gaps=True) as copier:
            assert copier.run_once() == 50 - 12 - 2
            assert copier.run_once() == 0
        assert store.get("client-a", "journal", 0) == [each for each in sample(50) if each.offset not in (12, 30)]
    with sej.Scanner(tmp_path / "hub" / "client-a.journal") as scanner:
        assert len(list(scanner)) == 48
        assert [(gap.start, gap.stop) for gap in scanner.gaps] == gaps


def test_a_gap_that_is_accepted_before_the_first_message_after_it(tmp_path: Path) -> None:
    with connected(tmp_path / "hub") as (store, client):
        client.put("journal", sample(5))
        sej.Writer(tmp_path / "journal", first_offset=10).close()
        with Copier(tmp_path / "journal", client, accept_gaps=True) as copier:
            assert copier.run_once() == 0
            fill(tmp_path / "journal", sample(2, 10))
            assert copier.run_once() == 2
        assert [message.offset for message in store.get("client-a", "journal", 0)] == [0, 1, 2, 3, 4, 10, 11]


def test_only_the_gap_that_the_client_names_is_accepted(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub") as store:
        store.put("a", "j", sample(3))
        for lost_from in (None, 0, 2, 4):
            with pytest.raises(hub.GapError):
                store.put_encoded("a", "j", packed(sample(2, 10)), lost_from=lost_from)
        for _ in range(2):  # the answer may be lost
            assert store.put_encoded("a", "j", packed(sample(2, 10)), lost_from=3) == 12
        assert store.put_encoded("a", "j", packed(sample(1, 12)), lost_from=12) == 13
        assert [message.offset for message in store.get("a", "j", 0)] == [0, 1, 2, 10, 11, 12]


def test_an_empty_directory_is_waited_for(tmp_path: Path) -> None:
    stop = threading.Event()
    with connected(tmp_path / "hub") as (store, client):
        copier = Copier(tmp_path / "journal", client, journal_dir="x", on_progress=lambda _: stop.set())
        for made in ("journal", "journal/ofs"):  # a writer makes them in this order, and then jnl/
            (tmp_path / made).mkdir()
            with pytest.raises(sej.JournalNotFoundError):
                copier.run_once()
        runner = threading.Thread(target=copier.run, args=(stop,), kwargs={"timeout": 60})
        runner.start()
        fill(tmp_path / "journal", [sej.Message(0, 1, 0, b"", b"first")])
        runner.join()
        assert store.end_offset("client-a", "x") == 1


def run_until_good(tree: Path, client: Client) -> dict[str, sej.SejError]:
    """Follow a tree until the five messages of ``good`` are over; returns the failures by then."""
    stop = threading.Event()

    def look(progress: Progress) -> None:
        if progress.messages >= 5:
            stop.set()

    copier = Copier(tree, client, on_progress=look)
    copier.run(stop, timeout=60)
    assert stop.is_set()
    return copier.progress.failures


def test_a_name_that_the_hub_refuses_does_not_stop_the_other_journals(tmp_path: Path) -> None:
    fill(tmp_path / "tree" / "a name", sample(1))
    fill(tmp_path / "tree" / "good", sample(5))
    with connected(tmp_path / "hub") as (store, client):
        assert isinstance(run_until_good(tmp_path / "tree", client)["a name"], sej.InvalidNameError)
        assert store.journals("client-a") == ["good"]
        with Copier(tmp_path / "tree", client) as copier:
            with pytest.raises(sej.InvalidNameError):
                copier.run_once()
            shutil.rmtree(tmp_path / "tree" / "a name")
            assert copier.run_once() == 0


def test_a_second_copier_of_one_directory_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "journal", sample(5))
    with (
        connected(tmp_path / "hub") as (_, client),
        sej.Offset(tmp_path / "journal", "hub"),
        pytest.raises(sej.LockedError),
    ):
        Copier(tmp_path / "journal", client).run_once()


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fill(tmp_path / "tree" / "a name", sample(1))
    with connected(tmp_path / "hub") as (_, client):
        with pytest.raises(sej.JournalNotFoundError):
            Copier(tmp_path / "nothing", client).run_once()
        with pytest.raises(sej.NotAJournalError):
            Copier(tmp_path / "file", client).run_once()
        with pytest.raises(sej.InvalidNameError, match="a name"):
            Copier(tmp_path / "tree", client).run_once()
        with pytest.raises(sej.NotAJournalError):
            Copier(tmp_path / "tree", client, journal_dir="x").run_once()


def test_following_brings_appends_and_new_shards(tmp_path: Path) -> None:
    first, second = threading.Event(), threading.Event()

    def look(progress: Progress) -> None:
        if progress.messages >= 10:
            first.set()
        if progress.messages >= 35:
            second.set()

    fill(tmp_path / "tree" / "s.1.000", sample(10))
    with connected(tmp_path / "hub") as (_, client):
        copier = Copier(tmp_path / "tree", client, on_progress=look)
        with running(copier):
            until(first)
            fill(tmp_path / "tree" / "s.1.000", sample(20, 10))
            fill(tmp_path / "tree" / "s.1.001", sample(5))
            until(second)
    for name in ("s.1.000", "s.1.001"):
        same_bytes(tmp_path / "tree" / name, tmp_path / "hub" / f"client-a.{name}")


def test_it_survives_a_hub_that_restarts(tmp_path: Path, port: int) -> None:
    some, rest = threading.Event(), threading.Event()
    fill(tmp_path / "journal", sample(100))
    address = f"127.0.0.1:{port}"

    def look(progress: Progress) -> None:
        (some if progress.messages < 300 else rest).set()

    with Client(address, client_id="client-a", timeout_s=5.0) as client:
        copier = Copier(tmp_path / "journal", client, on_progress=look, max_backoff_s=0.2)
        with running(copier):
            with serving(tmp_path / "hub", address):
                until(some)
            fill(tmp_path / "journal", sample(200, 100))  # while no hub runs
            with serving(tmp_path / "hub", address):
                until(rest)
    same_bytes(tmp_path / "journal", tmp_path / "hub" / "client-a.journal")
    assert sej.read_offset(tmp_path / "journal", "hub") == 300


def test_a_hub_that_refuses_every_client_ends_the_run(tmp_path: Path) -> None:
    fill(tmp_path / "journal", sample(1))
    with (
        serving(tmp_path / "hub", tokens=Tokens([])) as (_, server),
        Client(server.address, client_id="a") as client,
        pytest.raises(hub.AccessError),
    ):
        Copier(tmp_path / "journal", client).run(timeout=30)


class Flip:
    """Flips a bit of a value, in the first chunks that have it."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, data: bytes) -> bytes:
        if self.left and b"PAY 100" in data:
            self.left -= 1
            return data.replace(b"PAY 100", b"PAY 900")
        return data


def test_a_bit_that_changes_on_the_way_is_noticed_and_the_messages_are_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, reader = tmp_path / "journal", tmp_path / "journal" / "ofs" / "hub.ofs"
    fill(path, [sej.Message(0, 1, 0, b"", b"PAY 100 EUR")])
    with serving(tmp_path / "hub") as (store, server), Pipe(server.address, Flip(2)) as line:
        with Client(line.address, client_id="a") as client:
            refusal = pytest.raises(hub.UnavailableError, match=r"changed on the way to the hub: .* send them again")
            with Copier(path, client) as once, refusal:
                once.run_once()
            assert (store.sources(), reader.read_bytes()) == ([], bytes(8))
            stop = threading.Event()
            follower = Copier(path, client, on_progress=lambda _: stop.set(), backoff_s=0.01)
            assert follower.run(stop, timeout=60.0) == 1
        assert server.counts().refusals["unavailable"] == 2
    same_bytes(path, tmp_path / "hub" / "a.journal")
    assert "changed on the way to the hub" in caplog.text


def test_a_half_open_connection_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path / "journal", sample(10))
    silent = threading.Event()

    def swallow(data: bytes) -> bytes:
        return b"" if silent.is_set() else data

    def chunks() -> Iterator[bytes]:
        yield packed(sample(5))
        assert silent.wait(30)
        yield packed(sample(10)[5:])

    with serving(tmp_path / "hub") as (store, server):
        with (
            Pipe(server.address, swallow, swallow) as line,
            Client(line.address, client_id="a", timeout_s=5.0, keepalive_s=0.5) as client,
        ):
            stream = client.copy("journal", chunks())
            assert next(stream) == 5
            silent.set()
            with pytest.raises(hub.UnavailableError):
                next(stream)  # by the pings: no deadline of a stream's own would be right
        with Client(server.address, client_id="a") as client:
            assert Copier(tmp_path / "journal", client).run_once() == 5
        assert store.get("a", "journal", 0) == sample(10)


# --- one seed


def simulate(root: Path, seed: int) -> tuple[int, int]:
    """Copiers, appends, crashes of either side and a bad transport; every hub directory stays a prefix all the time."""
    rng = random.Random(seed)
    trouble = rng.choice([0.02, 0.1, 0.3])
    clients = {f"c{number}": root / f"c{number}" for number in range(rng.randrange(1, 4))}
    journals = [(client, f"s.1.00{shard}") for client in clients for shard in range(2)]
    ends = dict.fromkeys(journals, 0)
    max_open, segment_bytes = rng.randrange(1, 4), rng.choice([300, 5000])
    store = hub.Store(root / "hub", max_open, segment_bytes=segment_bytes)
    transports = {client: Transport(store, client, rng, trouble) for client in clients}
    copiers = {client: Copier(path, transports[client]) for client, path in clients.items()}
    lost = 0
    for step in range(rng.randrange(30, 80)):
        action = rng.random()
        client, journal = rng.choice(journals)
        if action < 0.35:
            count = rng.choice([1, 5, 200])
            fill(clients[client] / journal, sample(count, ends[client, journal], size=rng.choice([8, 3000])),
                 segment_bytes=rng.choice([500, 100_000]))  # fmt: skip
            ends[client, journal] += count
        elif action < 0.85 and clients[client].exists():
            try:
                copiers[client].run_once()
            except hub.UnavailableError:
                lost += 1
        elif action < 0.93 and clients[client].exists():  # the copier's machine: everything it knew is gone
            copiers[client].close()
            copiers[client] = Copier(clients[client], transports[client])
        else:  # the hub
            store.close()
            store = hub.Store(root / "hub", max_open, segment_bytes=segment_bytes)
            for transport in transports.values():
                transport.store = store
        for other, name in journals:
            copy = root / "hub" / f"{other}.{name}"
            if copy.exists():
                assert is_prefix(clients[other] / name, copy), f"seed {seed}, step {step}: {other}.{name}"
    for client, transport in transports.items():
        transport._trouble = 0.0
        if clients[client].exists():
            copiers[client].run_once()
        copiers[client].close()
    store.close()
    for client, journal in journals:
        if ends[client, journal]:
            same_bytes(clients[client] / journal, root / "hub" / f"{client}.{journal}")
            assert sej.Journal(root / "hub" / f"{client}.{journal}").verify() == []
    return lost, sum(transport.refused for transport in transports.values())


@pytest.mark.parametrize("seed", [*range(1, 5), 1003])
def test_every_directory_is_a_prefix_of_its_clients(tmp_path: Path, seed: int) -> None:
    simulate(tmp_path, seed)


@pytest.mark.torture
def test_simulations_without_end(tmp_path: Path, brief_s: float) -> None:
    deadline = time.monotonic() + brief_s
    seed = random.SystemRandom().randrange(1 << 32)
    while time.monotonic() < deadline:
        simulate(tmp_path / str(seed), seed)
        seed += 1


# --- SIGKILL

HUB = """
import sys, hub
from hub.wire import Server
store = hub.Store(sys.argv[1], segment_bytes=100_000)
server = Server(store, sys.argv[2])
print(server.address, flush=True)
sys.stdin.read()
"""
COPIER = """
import sys, json
from hub.wire import Client, Copier
def show(progress):
    print(json.dumps(progress.messages), flush=True)
Copier(sys.argv[1], Client(sys.argv[2], client_id="client-a", timeout_s=5.0), on_progress=show, max_backoff_s=0.2).run()
"""


def kill_either_side(root: Path, address: str, rng: random.Random, rounds: int) -> int:
    """Kill hub or copier at a moment of its own choosing, again and again; returns how many messages went over."""
    trees = [root / "tree" / f"s.1.00{shard}" for shard in range(2)]
    ends = [0, 0]

    def append(count: int) -> None:
        for shard, path in enumerate(trees):
            fill(path, sample(count, ends[shard], size=rng.choice([20, 400])), segment_bytes=50_000)
            ends[shard] += count

    append(300)
    server, copier = script(HUB, root / "hub", address), script(COPIER, root / "tree", address)
    try:
        for _ in range(rounds):
            append(rng.choice([50, 3000]))
            for _ in range(rng.randrange(1, 3)):  # of what was appended, each directory brings one at least
                assert json.loads(copier.stdout.readline()) >= 0  # it is at work just now
            if rng.random() < 0.5:
                server.send_signal(signal.SIGKILL)
                server.communicate()
                server = script(HUB, root / "hub", address)
            else:
                copier.send_signal(signal.SIGKILL)
                copier.communicate()
                append(10)
                copier = script(COPIER, root / "tree", address)
            for path in trees:
                copy = root / "hub" / f"client-a.{path.name}"
                kept = sej.read_offset(path, "hub") or 0
                if (copy / "jnl").exists() and segments(copy):
                    mine, theirs = b"".join(segments(path).values()), b"".join(segments(copy).values())
                    assert mine.startswith(theirs[: sej.Journal(copy).segments[0].size])
                    assert sej.Journal(copy).end_offset >= kept
    finally:
        for process in (copier, server):
            process.kill()
            process.communicate()
    with Server(hub.Store(root / "hub"), "127.0.0.1:0") as last, Client(last.address, client_id="client-a") as client:
        Copier(root / "tree", client).run_once()
        last.store.close()
    for path in trees:
        same_bytes(path, root / "hub" / f"client-a.{path.name}")
    return sum(ends)


def test_sigkill_of_either_side(tmp_path: Path, port: int) -> None:
    assert kill_either_side(tmp_path, f"127.0.0.1:{port}", random.Random(7), 3) > 600


@pytest.mark.torture
def test_sigkill_of_either_side_for_long(tmp_path: Path, port: int, torture_s: float) -> None:
    deadline = time.monotonic() + torture_s
    seed = random.SystemRandom().randrange(1 << 32)
    while True:
        rounds = 3 if torture_s < 10 else 20
        kill_either_side(tmp_path / str(seed), f"127.0.0.1:{port}", random.Random(seed), rounds)
        seed += 1
        if time.monotonic() >= deadline:
            break


def test_a_relative_path_means_the_directory_of_the_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    fill(tmp_path / "source", sample(7))
    monkeypatch.chdir(tmp_path)
    with connected(tmp_path / "hub") as (store, client):
        copier = Copier("source", client)
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert copier.run_once() == 7
        assert store.end_offset("client-a", "source") == 7
    assert list((tmp_path / "elsewhere").iterdir()) == []
