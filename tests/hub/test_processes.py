"""``sej hub serve --processes``: several processes behind one address, killed and replaced while clients send."""

import itertools
import os
import random
import re
import select
import signal
import socket
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hub
import sej
from hub.jobs import Staged
from hub.serving import _others, _reserved
from hub.wire import Client, Copier, Reader, Server
from hub.wire.job_calls import JobCalls
from sej import Message
from sej.cli.shared.supervising import Supervised
from sej.system.checksum import crc32c
from shard.commits.staging import StagedRowsError
from tests.forking import Piped
from tests.hub.command import run, start
from tests.hub.support import CERTIFICATES, fill, old_client, old_rows, same_bytes, until
from tests.hub.test_jobs import contents, rows, staged, values_of
from tests.sej.support import sample


class Hub:
    """The command with several processes."""

    def __init__(self, process: Piped, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.address = process.stdout.readline().decode().split()[-1]
        self._keepalive_s = 20.0

    def pids(self) -> list[int]:
        """The server processes."""
        pid = self.process.pid
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def has_replaced(self, pid: int) -> bool:
        """Whether another process runs in the place of one that was killed."""
        return len(self.pids()) == 2 and pid not in self.pids()

    def line(self, text: str) -> str:
        """Wait for a line of standard error with this text."""
        return next(line.strip() for line in map(bytes.decode, self.process.stderr) if text in line)

    def client(self, client_id: str) -> Client:
        """A connection of its own: gRPC shares those with the same options."""
        self._keepalive_s += 0.001
        return Client(self.address, client_id=client_id, keepalive_s=self._keepalive_s)

    def clients(self, stack: ExitStack, root: Path, client_id: str) -> list[Client]:
        """Connections to different processes, one to each."""
        found: dict[int, Client] = {}
        count = len(self.pids())
        for number in range(1000):
            if len(found) == count:
                break
            client = stack.enter_context(self.client(client_id))
            probe = f"probe-{uuid.uuid4().hex}-{number}"
            client.put(probe, sample(1))
            found.setdefault(holder(root / f"{client_id}.{probe}"), client)
        return [found[pid] for pid in sorted(found)]


def has_all(client: Client, journal: str, count: int) -> bool:
    """Whether the hub has so many messages of a journal."""
    return client.where(journal).next_offset == count


def holder(journal: Path) -> int:
    """The process that has the journal's writer."""
    return int((journal / "jnl.lck").read_text().split()[0].removeprefix("pid="))


@contextmanager
def running(
    tmp_path: Path, *words: object, processes: int = 2, address: str = "127.0.0.1:0", code: int = 0
) -> Iterator[Hub]:
    """Run the command until the end of the block, and check how it ends."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    command = ("serve", "--processes", processes, "--address", address, *words, tmp_path / "hub")
    with start(*command, env={"TMPDIR": str(tmp_path / "tmp")}) as process:
        try:
            yield Hub(process, tmp_path / "tmp")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == code
            assert os.listdir(tmp_path / "tmp") == []
        finally:
            process.terminate()


def insist(client: Client, journal: str, messages: list[Message]) -> int:
    """Put until the hub has the messages."""
    while True:
        try:
            return client.put(journal, messages)
        except hub.UnavailableError:
            continue


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_many_clients_are_divided_and_counted_together(tmp_path: Path) -> None:
    messages = sample(100)
    with running(tmp_path, "--metrics", 0, "--page", 0) as served, ExitStack() as stack:
        port = int(served.line("metrics on").rpartition(":")[2])
        page = served.line("the page is at").split()[-1]
        clients = [stack.enter_context(served.client(f"c{number}")) for number in range(24)]

        def send(client: Client) -> None:
            for first in range(0, 100, 10):
                client.put("j", messages[first : first + 10])

        with ThreadPoolExecutor(24) as pool:
            list(pool.map(send, clients))
        journals = [tmp_path / "hub" / f"{client.client_id}.j" for client in clients]
        assert sorted({holder(journal) for journal in journals}) == served.pids()
        assert all(client.get("j", 0) == messages for client in clients)
        assert metric(port, "sej_hub_messages_total") == 2400
        assert metric(port, "sej_hub_open_writers") == 24
        with urllib.request.urlopen(f"{page}hub?path={tmp_path / 'hub'}", timeout=60) as answer:
            assert b"New messages since the start</dt><dd>2,400</dd>" in answer.read()
        with pytest.raises(hub.GapError):
            clients[0].put("j", sample(1, 200))
        assert metric(port, r'sej_hub_refusals_total\{reason="gap"\}') == 1
        os.kill(served.pids()[0], signal.SIGKILL)
        served.line("a server process ended with exit code -9; starting another one")
        assert metric(port, "sej_hub_messages_total") == 2400
        until(lambda: len(served.pids()) == 2)
        assert [insist(client, "j", sample(110)[100:]) for client in clients] == [110] * 24
        until(lambda: metric(port, "sej_hub_messages_total") == 2400 + 240)


def test_connections_of_one_client_to_two_processes(tmp_path: Path) -> None:
    """Each message is stored once and in order, whether they take turns or send the same at the same time."""
    messages = sample(600)
    with running(tmp_path) as served, ExitStack() as stack:
        clients = served.clients(stack, tmp_path / "hub", "a")
        holders = []
        for first in range(0, 100, 10):
            assert clients[first // 10 % 2].put("j", messages[first : first + 10]) == first + 10
            holders.append(holder(tmp_path / "hub" / "a.j"))
        assert holders == served.pids() * 5

        def send(client: Client) -> None:
            for first in range(100, 600, 10):
                client.put("j", messages[first : first + 10])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, clients * 2))
        assert clients[0].get("j", 0) == clients[1].get("j", 0) == messages
        assert clients[0].where("j") == clients[1].where("j")


@pytest.mark.torture
def test_server_processes_are_killed_while_clients_put_and_copy(tmp_path: Path, torture_s: float) -> None:
    rng, kills = random.Random(3), 3 if torture_s < 10 else 8
    count = kills * 700
    messages = sample(count)
    for number in range(3):
        fill(tmp_path / f"source{number}", messages, segment_bytes=3000)
    sent = threading.Event()
    with running(tmp_path) as served, ExitStack() as stack:
        putting = [stack.enter_context(served.client(f"put{number}")) for number in range(6)]
        copiers = [
            stack.enter_context(Copier(tmp_path / f"source{number}", stack.enter_context(served.client("copy"))))
            for number in range(3)
        ]

        def put(client: Client) -> None:
            for first in range(0, count, 20):
                insist(client, "j", messages[first : first + 20])

        def copy(copier: Copier) -> None:
            copier.run(sent)

        with ThreadPoolExecutor(9) as pool:
            puts = [pool.submit(put, client) for client in putting]
            copies = [pool.submit(copy, copier) for copier in copiers]
            for _ in range(kills):
                pid = rng.choice(served.pids())
                os.kill(pid, signal.SIGKILL)
                served.line("ended with exit code -9")
                until(partial(served.has_replaced, pid))
            for future in puts:
                future.result()
            watching = stack.enter_context(served.client("copy"))
            for number in range(3):
                until(partial(has_all, watching, f"source{number}", count))
            sent.set()
            for future in copies:
                future.result()
        for client in putting:
            assert client.get("j", 0, count, max_bytes=1 << 24) == messages
    for number in range(3):
        same_bytes(tmp_path / "source0", tmp_path / "hub" / f"copy.source{number}")


@pytest.mark.parametrize("killed", [True, False])
def test_the_last_process_removes_the_folder_of_a_killed_supervisor(tmp_path: Path, *, killed: bool) -> None:
    """Also before the system has given it another parent: the pipe of a killed process ends earlier."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    pipe, end = os.pipe()
    told = Supervised(0, pipe, -1, {"folder": str(folder), "count": 1})
    try:
        with _others(told):
            if killed:
                os.close(end)
        assert folder.exists() is not killed
    finally:
        for each in (pipe, *([] if killed else [end])):
            os.close(each)


@pytest.mark.timeout(120)
def test_the_processes_end_though_their_supervisor_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, code=-signal.SIGKILL) as served:
        with served.client("a") as client:
            client.put("j", sample(1))
        store = hub.Store(tmp_path / "hub")
        with pytest.raises(sej.LockedError, match="this hub's root is held by"):
            Server(store, "127.0.0.1:0")
        served.process.kill()
        served.process.stderr.read()  # to its end: no server process has it open
        with store, Server(store, "127.0.0.1:0"):
            pass
        assert os.listdir(served.folder) == []
        with sej.Writer(tmp_path / "hub" / "a.j") as writer:
            assert writer.offset == 1


def test_what_is_left_when_all_are_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    with running(tmp_path, code=-signal.SIGKILL) as served:
        pids = [served.process.pid, *served.pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # no server process sees that the supervisor has ended
        with ExitStack() as stack:
            for handle in [os.pidfd_open(pid) for pid in pids]:
                stack.callback(os.close, handle)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [])  # until it has ended, and its locks with it
        (folder,) = os.listdir(served.folder)
        (served.folder / folder).rename(tmp_path / folder)
    (tmp_path / folder).rename(tmp_path / "tmp" / folder)
    with running(tmp_path) as served:
        assert len(os.listdir(served.folder)) == 1


def test_a_process_that_ended_before_the_signal_does_not_count(tmp_path: Path) -> None:
    with running(tmp_path) as served:
        killed = served.pids()[0]
        served.process.send_signal(signal.SIGSTOP)  # it does not see that the process has ended
        handle = os.pidfd_open(killed)
        os.kill(killed, signal.SIGKILL)
        select.select([handle], [], [])  # until all of its threads have ended
        os.close(handle)
        served.process.send_signal(signal.SIGTERM)
        served.process.send_signal(signal.SIGCONT)


def test_a_named_reader_is_held_through_every_process(tmp_path: Path) -> None:
    fill(tmp_path / "hub" / "EWR.flights", sample(50))
    with running(tmp_path, "--metrics", 0) as served, ExitStack() as stack:
        port = int(served.line("metrics on").rpartition(":")[2])
        one, two = served.clients(stack, tmp_path / "hub", "EWR")
        with Reader(one, "report", "EWR", "flights", wait=False) as reader:
            with pytest.raises(hub.ReaderHeldError, match="whose lease ends in"):
                Reader(two, "report", "EWR", "flights")
            assert metric(port, "sej_hub_reader_leases") == 1
            assert sum(len(messages) for messages in reader) == 50
            reader.commit()
        assert sej.read_offset(tmp_path / "hub" / "EWR.flights", "report") == 50
        with Reader(two, "report", "EWR", "flights", wait=False) as reader:
            with pytest.raises(hub.ReaderHeldError):
                Reader(one, "report", "EWR", "flights")
            assert list(reader) == []
        with Reader(two, "another", "EWR", "flights", wait=False) as reader:
            assert sum(len(messages) for messages in reader) == 50
            assert metric(port, "sej_hub_reader_leases") == 1
            os.kill(served.pids()[0], signal.SIGKILL)  # the one that had the lease
            reader.commit()
            with pytest.raises(hub.ReaderHeldError):
                Reader(two, "another", "EWR", "flights")
        assert sej.read_offset(tmp_path / "hub" / "EWR.flights", "another") == 50
        with pytest.raises(sej.JournalNotFoundError):
            Reader(two, "report", "EWR", "nothing")
        assert metric(port, r'sej_hub_refusals_total\{reason="held"\}') == 3


def test_a_job_is_staged_through_every_process_and_committed_once(tmp_path: Path) -> None:
    with running(tmp_path) as served, ExitStack() as stack:
        clients = served.clients(stack, tmp_path / "hub", "a")
        one, two = map(JobCalls, clients)
        files = []
        for shard in (0, 1):
            data, task = rows(values_of(shard)), uuid.uuid4().hex
            half = len(data) // 2
            assert one.stage("01", task, shard, 0, data[:half]) == half
            assert two.stage("01", task, shard, 0, data[:half]) == half, "the answer was lost"
            assert two.stage("01", task, shard, half, data[half:]) == len(data)
            files.append(Staged(task, shard, 20, len(data), crc32c(data)))
        one.seal("01", files)
        clients[0].put("orders.1.000", [Message(0, 1, 0, b"", b"before")])
        assert two.commit("01", "orders", 1, files, name="app", number=1)
        assert not one.commit("01", "orders", 1, files, name="app", number=1)
        clients[0].put("orders.1.000", [Message(21, 1, 0, b"", b"after")])
        one.stage("02", "03", 0, 0, rows([b"x"]))
        two.abort("02")
        for each in (one, two):
            with pytest.raises(StagedRowsError, match="was aborted"):
                each.stage("02", "04", 0, 0, rows([b"x"]))
    found = contents(tmp_path / "hub")
    assert found["a.orders.1.000"] == [b"before", *values_of(0), b"after"]
    assert found["a.orders.1.001"] == values_of(1)


def test_every_row_once_though_a_process_is_killed_during_a_commit(tmp_path: Path) -> None:
    """A job is run again under the same number, as Spark does, through another process."""
    with running(tmp_path) as served, ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        clients = served.clients(stack, tmp_path / "hub", "a")
        for number in range(8):
            for turn in itertools.count(number):
                calls, job = JobCalls(clients[turn % 2]), uuid.uuid4().hex
                try:
                    files = [staged(calls, job, shard, values_of(shard, tag=f"n{number}")) for shard in (0, 1)]
                    commit = pool.submit(calls.commit, job, "orders", 1, files, name="app", number=number)
                    if number in (1, 4) and turn == number:
                        os.kill(served.pids()[turn // 3], signal.SIGKILL)
                        served.line("ended with exit code -9")
                    commit.result()
                except (hub.UnavailableError, hub.GapError, StagedRowsError):
                    continue
                break
    found = contents(tmp_path / "hub")
    for shard in (0, 1):
        wanted = [value for number in range(8) for value in values_of(shard, tag=f"n{number}")]
        assert found[f"a.orders.1.{shard:03x}"] == wanted


def test_a_quota_holds_for_all_processes(tmp_path: Path) -> None:
    with running(tmp_path, "--client-bytes", "64K") as served, ExitStack() as stack:
        clients = served.clients(stack, tmp_path / "hub", "a")

        def fill_up() -> None:
            for number in range(1000):
                clients[number % 2].put(f"j{number}", [Message(0, 1, 0, b"", bytes(1000))])

        with pytest.raises(hub.QuotaError):
            fill_up()
        used = sum(len(b"".join(values)) for values in contents(tmp_path / "hub").values())
        assert (1 << 16) - 10_000 < used < 1 << 16


def test_an_old_client_is_served(tmp_path: Path) -> None:
    send = old_client(tmp_path)
    with running(tmp_path) as served:
        for _ in range(3):  # each with a connection of its own
            assert send(served.address, "j", old_rows(sample(5))) == "OK 5\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_another_hub_on_the_same_port_is_refused(tmp_path: Path, processes: int) -> None:
    with running(tmp_path) as served:
        done = run("serve", "--processes", processes, "--address", served.address, tmp_path / "other")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on {served.address}" in done.stderr


def test_a_name_may_have_an_address_that_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the name localhost in a container without IPv6."""
    real = socket.getaddrinfo
    there = ["192.0.2.1", "127.0.0.1"]  # the first is for documentation only

    def found(_: str, port: int, **options: Any) -> list[Any]:
        return [place for host in there for place in real(host, port, **options)]

    monkeypatch.setattr("hub.serving.socket.getaddrinfo", found)
    with _reserved("localhost:0") as address:
        assert re.fullmatch(r"localhost:[1-9][0-9]*", address)
        there[:] = ["127.0.0.1"]
        with pytest.raises(OSError, match=r"cannot listen on localhost:[0-9]+: Address already in use"):
            _reserved(address).__enter__()
    there[:] = ["192.0.2.1"]
    with pytest.raises(OSError, match="cannot listen on localhost:0: Cannot assign requested address"):
        _reserved("localhost:0").__enter__()


def test_a_hub_that_cannot_start_says_so_once(tmp_path: Path) -> None:
    certificate, key = CERTIFICATES / "server.pem", CERTIFICATES / "client-a.key"
    command = ("serve", "--processes", 2, "--address", "127.0.0.1:0", "--certificate", certificate, "--key", key)
    done = run(*command, tmp_path / "hub")
    assert (done.returncode, done.stdout, done.stderr.count("expected a certificate and its own private key")) == (
        2,
        "",
        1,
    )
