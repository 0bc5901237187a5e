"""What readers can do to a hub: its memory is bounded, and puts and copiers do not wait for them."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import hub
import sej
from hub.naming import Source
from hub.wire import Client, Server
from hub.wire import hub_pb2 as pb
from hub.wire.reading import PIECE_BYTES, Get, Reader
from hub.wire.status import BusyError, TooLargeError
from tests.hub.greedy import OPTIONS, SMALL_WINDOW, unread
from tests.hub.support import ROOT, connected, fill, serving, until
from tests.sej.hooks import Script
from tests.sej.support import packed, sample, write

HUB = [sys.executable, "-c", "from hub.cli import app; app(prog_name='sej hub')"]
MIB = 1 << 20


@contextlib.contextmanager
def program(*words: object) -> Iterator[Any]:
    """Run a process whose standard input is closed at the end of the block. Its first line is read."""
    with Script([*map(str, words)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.stdin.close()


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """The most memory that a process ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def put_times(client: Client, first: int, count: int) -> list[float]:
    times = []
    for offset in range(first, first + count):
        start = time.monotonic()
        assert client.put("j", [sej.Message(offset, 1, 0, b"", b"v")]) == offset + 1
        times.append(time.monotonic() - start)
    return times


def test_five_hundred_greedy_readers(tmp_path: Path) -> None:
    serve = [*HUB, "serve", "--address", "127.0.0.1:0", "--answer-bytes", "64M", tmp_path / "hub"]
    with program(*serve) as (server, line):
        address = line.rsplit(" ", 1)[1]
        with Client(address, client_id="large") as large, Client(address, client_id="small", timeout_s=120.0) as small:
            large.put("j", [sej.Message(number, 1, 0, b"", bytes(100_000)) for number in range(100)])
            put_times(small, 0, 5)
            before = peak_bytes(server)
            with program(sys.executable, "-m", "tests.hub.greedy", address, "large", "j", 150, 50, 300) as (readers, _):
                times: list[float] = []
                answers, until = 0, time.monotonic() + 120
                while (answers < 300 or len(times) < 10) and time.monotonic() < until:
                    times += put_times(small, 5 + len(times), 2)
                    print("how many answers?", file=readers.stdin, flush=True)
                    answers = int(readers.stdout.readline())
                after = peak_bytes(server)
    assert answers >= 300  # readers that take their answers get some
    assert after - before < (64 + 160) * MIB  # the budget, and what 500 connections and 200 streams cost
    assert max(times) < 60
    assert sorted(times)[len(times) // 2] < 10


@pytest.mark.parametrize("verify", [False, True])
def test_a_large_message_waits_for_its_memory_once_and_outside_of_it(tmp_path: Path, verify: bool) -> None:
    fill(tmp_path / "a.j", [large(number, 4 * MIB) for number in range(3)])
    grown: list[int] = []

    class Share:
        def grow(self, size: int) -> None:
            assert tracemalloc.get_traced_memory()[0] - before < MIB
            grown.append(size)

    share: Any = Share()

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with (
            hub.Store(tmp_path) as store,
            Reader(store, Source("a", "j"), 0, most_bytes=8 * MIB, lease=share, verify=verify) as reader,
        ):
            follow = Get(reader, 10, MIB)
            assert all(len(follow.answer(MIB)) > 4 * MIB for _ in range(3))
    finally:
        tracemalloc.stop()
    assert grown == [4 * MIB + 29] * 3


def test_streams_that_take_one_answer_and_stop(tmp_path: Path) -> None:
    """Messages that are larger than the whole budget, and threads that keep what they have freed."""
    serve = [*HUB, "serve", "--address", "127.0.0.1:0", "--answer-bytes", "8M", tmp_path / "hub"]
    with program(*serve) as (server, line), contextlib.ExitStack() as stack:
        address = line.rsplit(" ", 1)[1]
        with Client(address, client_id="large") as client:
            client.put("j", [large(number, 8_000_000) for number in range(4)])
        before = peak_bytes(server)
        request = pb.GetRequest(ClientID="large", JournalDir="j").SerializeToString()
        streams = []
        for _ in range(10):
            channel = stack.enter_context(grpc.insecure_channel(address, options=OPTIONS))
            follow: Any = channel.unary_stream("/hub.Hub/Follow", None, len)
            streams += [follow(request) for _ in range(4)]
        with ThreadPoolExecutor(40) as pool:
            assert min(pool.map(next, streams)) > 8_000_000
        after = peak_bytes(server)
        for stream in streams:
            stream.cancel()
    assert after - before < 180 * MIB  # three copies of a message, four arenas, and what 40 streams cost


# --- how large an answer is


def large(number: int, size: int) -> sej.Message:
    return sej.Message(number, number, 7, b"key", bytes([number % 256]) * size)


def everything(address: str, offset: int = 0) -> pb.GetResponse:
    """The answer to a caller that sets no limits."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        get: Any = channel.unary_unary("/hub.Hub/Get", pb.GetRequest.SerializeToString, pb.GetResponse.FromString)
        asked = pb.GetRequest(ClientID="a", JournalDir="j", Offset=offset, MaxMessages=2**32 - 1, MaxBytes=2**63)
        answer: pb.GetResponse = get(asked, timeout=60)
        return answer


def test_an_answer_is_limited_whatever_is_requested(tmp_path: Path) -> None:
    rows = [large(number, 10_000) for number in range(100)]
    fill(tmp_path / "a.j", rows)
    with serving(tmp_path, max_answer_bytes=200_000) as (_, server):
        found: list[sej.Message] = []
        while len(found) < len(rows):
            answer = everything(server.address, len(found))
            assert answer.ByteSize() <= 200_000
            assert len(answer.Messages) == min(19, len(rows) - len(found))
            found += [sej.Message(m.Offset, m.Timestamp, m.Type, m.Key, m.Value) for m in answer.Messages]
        assert found == rows
        assert len(everything(server.address, len(rows)).Messages) == 0


def test_a_message_that_is_larger_than_an_answer_comes_alone(tmp_path: Path) -> None:
    rows = [large(0, 10), large(1, 3 << 20), large(2, 10), large(3, 80_000), large(4, 5)]
    fill(tmp_path / "a.j", rows)
    limits = {"max_answer_bytes": 100_000, "answer_bytes": 1 << 20}
    with connected(tmp_path, "a", server=limits) as (_, client):
        sizes = [len(everything(client.address, offset).Messages) for offset in range(5)]
        assert sizes == [1, 1, 3, 2, 1]
        follow = client.follow("j", 0)
        followed: list[sej.Message] = []
        while len(followed) < len(rows):
            followed += next(follow)
        assert followed == rows
        chunks = [bytes(chunk) for chunk in client.read_encoded("j", 0, verify=False)]
        assert chunks[1] == packed(rows[1:2])
        assert b"".join(chunks) == packed(rows)
        assert b"".join(map(bytes, client.read_encoded("j", 0, verify=True))) == packed(rows)


def test_a_message_that_is_larger_than_the_hub_sends_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "a.j", [large(0, 10), large(1, 3 << 20), large(2, 10)])
    said = r"a\.j: message 1 has 3145757 bytes.* at most .*max_message_bytes"
    with connected(tmp_path, "a", server={"max_message_bytes": 1 << 20}) as (_, client):
        for verify in (True, False):
            assert len(client.get("j", 0, verify=verify)) == 1
            for attempt in (client.get, client.read_encoded, client.follow):
                with pytest.raises(TooLargeError, match=said):
                    list(attempt("j", 0 if attempt != client.get else 1, verify=verify))
            assert len(client.get("j", 2, verify=verify)) == 1


# --- callers that do not take their answers


@contextlib.contextmanager
def unread_stream(server: Server) -> Iterator[Any]:
    """A reader of large messages that holds all memory of a small hub."""
    whole = pb.ReadRequest(ClientID="a", JournalDir="j").SerializeToString()
    with grpc.insecure_channel(server.address, options=[*OPTIONS, *SMALL_WINDOW]) as channel:
        call = unread(channel, "Read", whole)
        until(lambda: server.service.answers.used >= 1 << 20)
        yield call


@contextlib.contextmanager
def hungry(tmp_path: Path, **options: Any) -> Iterator[tuple[Server, Client]]:
    """A hub with little memory for answers, and a journal of large messages."""
    fill(tmp_path / "a.j", [large(number, 2 << 20) for number in range(20)])
    with (
        serving(tmp_path, answer_bytes=1 << 20, **options) as (_, server),
        Client(server.address, client_id="a") as client,
    ):
        yield server, client


def test_puts_and_copiers_do_not_wait_for_readers(tmp_path: Path) -> None:
    with hungry(tmp_path, wait_s=0.2, stall_s=3600.0) as (server, client), unread_stream(server):
        with pytest.raises(BusyError, match="memory for answers was used up"):
            client.get("j", 0)
        with pytest.raises(BusyError, match="memory for answers was used up"):
            next(client.read_encoded("j", 0))
        assert client.put("other", sample(3)) == 3
        assert list(client.copy("other", [packed(sample(5))])) == [5]
        assert client.end_offset("j") == 20


def test_a_reader_waits_with_its_deadline(tmp_path: Path) -> None:
    with (
        hungry(tmp_path, stall_s=3600.0) as (server, _),
        unread_stream(server),
        Client(server.address, client_id="a", timeout_s=2.0) as client,
        pytest.raises(hub.UnavailableError, match=r"used up for [01]\.[0-9] s; try again later|DEADLINE_EXCEEDED"),
    ):
        client.get("j", 0)  # on a loaded machine the deadline may come first


def test_a_reader_gets_its_turn_when_another_one_continues(tmp_path: Path) -> None:
    with hungry(tmp_path, stall_s=3600.0) as (server, client), unread_stream(server) as call:
        get = client.follow("j", 0)  # it waits
        count = sum(1 for _ in call)
        assert count == 20
        assert next(get)[0] == large(0, 2 << 20)


def test_a_reader_that_does_not_continue_is_ended_when_others_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hungry(tmp_path, stall_s=0.1) as (server, client), unread_stream(server) as call:
        assert client.get("j", 3) == [large(3, 2 << 20)]
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        assert server.service.answers.stalled == 1
        assert "1 readers, one at ipv4:127.0.0.1:" in caplog.text
    assert server.service.answers.used == 0


def test_a_slow_reader_is_not_disconnected_if_no_other_waits(tmp_path: Path) -> None:
    with hungry(tmp_path, stall_s=0.1) as (server, _), unread_stream(server) as call:
        seen = server.service.answers.sweeps
        until(lambda: server.service.answers.sweeps > seen + 5)
        assert sum(1 for _ in call) == 20


def test_a_reader_that_waits_and_leaves_frees_its_place(tmp_path: Path) -> None:
    with hungry(tmp_path, stall_s=3600.0) as (server, client), unread_stream(server):
        answers = server.service.answers
        with grpc.insecure_channel(server.address) as channel:
            get: Any = channel.unary_unary("/hub.Hub/Get", None, None)
            call = get.future(pb.GetRequest(ClientID="a", JournalDir="j").SerializeToString())
            until(lambda: answers.waiting)
            call.cancel()
            until(lambda: not answers.waiting)
        assert client.put("other", sample(1)) == 1
    assert answers.used == 0


def test_calls_beyond_the_limit_are_refused_by_kind(tmp_path: Path) -> None:
    with hungry(tmp_path, stall_s=3600.0, max_calls=1) as (server, client), unread_stream(server):
        asked = pb.GetRequest(ClientID="a", JournalDir="j").SerializeToString()
        with grpc.insecure_channel(server.address) as channel:
            get: Any = channel.unary_unary("/hub.Hub/Get", None, None)
            waiting = get.future(asked)
            until(lambda: server.service.answers.waiting)
            with pytest.raises(BusyError, match="calls of this kind"):
                client.get("j", 0)
            with pytest.raises(BusyError, match="calls of this kind"):
                next(client.read_encoded("j", 0))
            assert client.put("other", sample(1)) == 1
            assert client.end_offset("other") == 1
            waiting.cancel()


def test_reads_beyond_the_limit_wait_for_their_turn(tmp_path: Path) -> None:
    with (
        hungry(tmp_path, stall_s=3600.0, max_streams=1) as (server, client),
        unread_stream(server) as call,
        ThreadPoolExecutor(1) as pool,
    ):
        chunks = pool.submit(lambda: sum(1 for _ in client.read_encoded("j", 0)))
        until(lambda: server.service.waiting)
        assert client.put("other", sample(3)) == 3
        assert list(client.copy("other", [packed(sample(5))])) == [5]
        assert not chunks.done()
        assert sum(1 for _ in call) == 20
        assert chunks.result() == 20
        until(lambda: not server.service.waiting)


def test_stopping_does_not_wait_for_readers_that_wait(tmp_path: Path) -> None:
    with (
        hungry(tmp_path, stall_s=3600.0, grace_s=0.1) as (server, _),
        unread_stream(server),
        grpc.insecure_channel(server.address) as channel,
    ):
        get: Any = channel.unary_unary("/hub.Hub/Get", None, None)
        call = get.future(pb.GetRequest(ClientID="a", JournalDir="j").SerializeToString())
        until(lambda: server.service.answers.waiting)
        server.close()
        assert call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize(
    "options",
    [{"answer_bytes": 1000}, {"max_answer_bytes": 0}, {"max_streams": 0}, {"max_followers": 0}, {"max_copiers": 0},
     {"max_calls": 0}, {"threads": 0}, {"wait_s": 0.0}, {"stall_s": -1.0}, {"idle_s": float("nan")},
     {"max_message_bytes": 0}],
)  # fmt: skip
def test_limits_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with hub.Store(tmp_path) as store, pytest.raises(ValueError, match=f"^{name} must be "):
        Server(store, "127.0.0.1:0", **options)


@pytest.mark.parametrize("verify", [False, True])
def test_a_journal_that_is_recreated_while_it_is_read_ends_the_read(tmp_path: Path, verify: bool) -> None:
    """The next segment of the new one has the same name, and other messages with the next offsets."""

    def create(tag: bytes) -> None:
        write(tmp_path / "a.j", [b"%s-%03d" % (tag, number) for number in range(1000)], segment_bytes=10_000)

    create(b"old")
    share: Any = None  # no message is large
    with (
        hub.Store(tmp_path) as store,
        Reader(store, Source("a", "j"), 0, most_bytes=MIB, lease=share, verify=verify) as reader,
    ):
        assert b"old-000" in b"".join(reader.run(PIECE_BYTES, 0))
        shutil.rmtree(tmp_path / "a.j")
        create(b"new")
        with pytest.raises(sej.JournalNotFoundError, match=r"a\.j was removed or re-created while it was read"):
            reader.run(PIECE_BYTES, 0)
    with serving(tmp_path) as (_, server), Client(server.address) as client:
        assert [message.value for message in client.get("j", 0, client_id="a")] == [
            b"new-%03d" % n for n in range(1000)
        ]
