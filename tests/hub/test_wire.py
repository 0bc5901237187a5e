"""The service over real sockets: what arrives, what is refused, who is let in, how it ends."""

import contextlib
import errno
import hashlib
import itertools
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

import hub
import sej
from hub.certificates import absolute_address
from hub.page.serving import PageServer
from hub.tokens import Grant, hash_token
from hub.wire import Client, ClientTLS, Server, ServerTLS, Tokens, make_token
from hub.wire import hub_pb2 as pb
from hub.wire.access import Guard
from hub.wire.frames import copy_request, open_encoded, stage_request
from hub.wire.status import DirectoryUnavailableError, TooLargeError
from sej.system.disk import OS, File
from sej.system.locks import Lock
from tests.cli.inside import inside
from tests.hub.greedy import OPTIONS, SMALL_WINDOW
from tests.hub.support import CERTIFICATES, connected, old_client, old_rows, serving, until
from tests.hub.transport import Pipe
from tests.sej.hooks import HookedDisk, Worker
from tests.sej.support import overwrite, packed, sample, segments

EDGES = [
    sej.Message(0, sej.NO_TIMESTAMP, 0, b"", b""),
    sej.Message(1, 2**63 - 1, 255, b"k" * 127, b"\x00\xff" * 50),
    sej.Message(2, -1, 128, b"\x80", b"v"),
]


def raw(address: str, name: str, data: bytes) -> bytes:
    """Call a method with any bytes. If the hub refuses them, this raises grpc.RpcError."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(f"/hub.Hub/{name}", None, None)
        answer: bytes = call(data, timeout=20)
        return answer


def copied(address: str, requests: Iterable[bytes], token: str | None = None) -> list[int]:
    """Copy with any requests, and return what was acknowledged."""
    shown = [] if token is None else [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(address) as channel:
        copy: Any = channel.stream_stream("/hub.Hub/Copy", None, pb.CopyResponse.FromString)
        return [answer.NextOffset for answer in copy(iter(requests), metadata=shown, timeout=60)]


@contextlib.contextmanager
def refused_with(code: grpc.StatusCode) -> Iterator[None]:
    with pytest.raises(grpc.RpcError) as refused:
        yield
    assert refused.value.code() is code


def replace(path: Path, text: str) -> None:
    """Replace a file of tokens, as a person should."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def outside(root: Path) -> list[str]:
    """Return the names next to a root, where nothing must ever be written."""
    return sorted(path.name for path in root.parent.iterdir() if path != root)


# --- what arrives


def test_put_and_get_keep_everything(tmp_path: Path) -> None:
    with connected(tmp_path / "hub") as (store, client):
        assert client.put("j", EDGES) == 3
        assert client.put("j", EDGES) == 3
        assert client.get("j", 0) == EDGES
        assert client.get("j", 1, 1) == EDGES[1:2]
        assert client.get("j", 0, max_bytes=1) == EDGES[:1]
        assert client.get("j", 3) == []
        with pytest.raises(ValueError, match="offset must be at least 0, got -1"):
            client.get("j", -1)
        assert client.put("j", []) == 3
        assert client.where("j") == (True, 0, 3)
        assert client.where("unknown") == (False, 0, 0)
        assert store.get("client-a", "j", 0) == EDGES
    assert b"".join(segments(tmp_path / "hub" / "client-a.j").values()) == packed(EDGES)


def test_copy_acknowledges_what_is_durable(tmp_path: Path) -> None:
    messages = sample(1000)
    with connected(tmp_path) as (store, client):
        chunks = [packed(messages[at : at + 100]) for at in range(0, 1000, 100)]
        acknowledged = list(client.copy("j", iter(chunks)))
        assert acknowledged == sorted(set(acknowledged))
        assert acknowledged[-1] == 1000
        assert list(client.copy("j", chunks[-1:])) == [1000]  # once more
        assert store.get("client-a", "j", 0) == messages
    assert b"".join(segments(tmp_path / "client-a.j").values()) == packed(messages)


def test_copy_acknowledges_what_came_before_a_wrong_chunk(tmp_path: Path) -> None:
    messages = sample(30)
    with connected(tmp_path) as (store, client):
        acknowledged: list[int] = []
        with pytest.raises(hub.GapError) as refused:
            acknowledged.extend(client.copy("j", [packed(messages[:10]), packed(messages[20:])]))
        assert refused.value.expected == 10
        assert acknowledged == [10]
        assert store.end_offset("client-a", "j") == 10


def test_what_is_not_the_beginning_does_not_become_one(tmp_path: Path) -> None:
    with connected(tmp_path) as (store, client):
        with pytest.raises(hub.GapError, match="not its beginning; send the journal's first messages before"):
            list(client.copy("j", [packed(sample(5, 10))], create=False))
        assert store.sources() == []
        assert list(client.copy("j", [packed(sample(5, 10))])) == [15]


def test_a_journal_is_returned_as_stored(tmp_path: Path) -> None:
    messages = sample(9000, 5, size=400)
    with connected(tmp_path) as (store, client):
        store.put("client-a", "j", messages)
        chunks = [bytes(chunk) for chunk in client.read_encoded("j", 5)]
        assert len(chunks) > 1
        assert b"".join(chunks) == packed(messages)
        assert b"".join(client.read_encoded("j", 7, 8)).startswith(packed(messages[2:3]))
        assert list(client.read_encoded("j", 9005)) == []
        with pytest.raises(sej.OffsetTooSmallError) as deleted:
            list(client.read_encoded("j", 4))
        assert deleted.value.first_available == 5
        with pytest.raises(sej.JournalNotFoundError):
            list(client.read_encoded("unknown", 0))
        assert [client.find_time("j", messages[at].timestamp) for at in (0, 77)] == [5, 82]
        assert client.find_time("j", messages[-1].timestamp + 1) == 9005
        assert open_encoded(pb.ReadResponse, pb.ReadResponse(Encoded=chunks[0]).SerializeToString())[1] == chunks[0]


def test_a_damaged_journal_is_returned_if_it_is_requested(tmp_path: Path) -> None:
    messages = sample(30)
    with connected(tmp_path) as (store, client):
        store.put("client-a", "j", messages)
        (segment,) = (tmp_path / "client-a.j" / "jnl").iterdir()
        overwrite(segment, len(packed(messages[:10])) + 10, b"\xff" * 8)
        assert client.journals()[0].next_offset == 30
        with pytest.raises(sej.CorruptionError):
            list(client.read_encoded("j", 0))
        assert list(client.read_encoded("j", 0, skip=True)) == [packed(messages[:10]), packed(messages[11:])]


def test_the_list_of_journals_has_their_offsets(tmp_path: Path) -> None:
    with connected(tmp_path) as (store, client):
        assert client.journals() == []
        store.put("client-a", "j", sample(5))
        store.put("client-b", "k.1.000", sample(7, 3))
        first, second = client.journals()
        assert first[:5] == ("client-a", "j", 0, 5, len(packed(sample(5))))
        assert second[:5] == ("client-b", "k.1.000", 3, 10, len(packed(sample(7, 3))))
        assert len(first.id) == len(second.id) == 16
        assert first.id != second.id
        assert client.journals("client-b") == [second]


def test_a_journal_with_a_foreign_file_is_named(tmp_path: Path) -> None:
    with connected(tmp_path) as (store, client):
        store.put("client-b", "j", sample(5))
        (tmp_path / "client-a.odd" / "jnl").mkdir(parents=True)
        os.mkfifo(tmp_path / "client-a.odd" / "jnl" / f"{0:016x}.jnl")
        with pytest.raises(hub.UnavailableError, match=r"client-a\.odd: this is a FIFO"):
            client.journals()
        assert [journal.journal_dir for journal in client.journals("client-b")] == ["j"]


def test_an_old_client_that_knows_only_put(tmp_path: Path) -> None:
    run = old_client(tmp_path)
    rows = old_rows(EDGES)
    with serving(tmp_path / "hub") as (store, server):
        assert run(server.address, "j", rows) == "OK 3\n"
        assert run(server.address, "j", rows) == "OK 3\n"
        assert store.get("old", "j", 0) == EDGES
        gap = run(server.address, "j", rows.replace('"offset": 0', '"offset": 7').splitlines()[0] + "\n")
        assert gap.startswith("FAILED_PRECONDITION ")
        assert run(server.address, "../j", rows).startswith("INVALID_ARGUMENT ")


# --- bad callers


@pytest.mark.parametrize(
    ("client", "journal"),
    [("../../escape", "j"), ("a", "../../../up"), ("a..b", "c"), ("a\x00", "j"), ("a", "j\r\n"), ("", ""), ("a", "..")],
)
def test_names_that_could_leave_the_root(tmp_path: Path, client: str, journal: str) -> None:
    root = tmp_path / "deep" / "hub"
    with serving(root) as (store, server):
        for name, data in (
            ("Put", pb.PutRequest(ClientID=client, JournalDir=journal, Messages=[pb.Message()])),
            ("Get", pb.GetRequest(ClientID=client, JournalDir=journal)),
            ("Where", pb.WhereRequest(ClientID=client, JournalDir=journal)),
        ):
            with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
                raw(server.address, name, data.SerializeToString())
        with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
            copied(server.address, [copy_request(packed(sample(1)), client, journal)])
        assert store.sources() == []
    assert sorted(path.name for path in root.iterdir()) == [".hub", ".serving.lck"]
    assert outside(root) == []
    assert outside(root.parent) == []


def test_every_refusal_has_its_status(tmp_path: Path) -> None:
    messages = sample(5)
    with connected(tmp_path) as (store, client):
        client.put("j", messages[:3])
        with pytest.raises(hub.GapError) as gap:
            client.put("j", messages[4:])
        assert gap.value.expected == 3
        with pytest.raises(hub.GapError):
            client.put("j", [messages[3], messages[2]])  # offsets that go back
        with pytest.raises(hub.ConflictError):
            client.put("j", [messages[0]._replace(value=b"other")])
        with pytest.raises(sej.InvalidMessageError, match="type must be 0 to 255, got 256"):
            client.put("j", [messages[3]._replace(type=256)])
        with pytest.raises(sej.InvalidMessageError, match="key"):
            client.put("j", [messages[3]._replace(key=b"k" * 128)])
        with pytest.raises(sej.JournalNotFoundError):
            client.get("unknown", 0)
        with pytest.raises(sej.JournalNotFoundError):
            next(client.follow("unknown", 0))
        with pytest.raises(sej.InvalidMessageError):
            list(client.copy("j", [b"garbage" * 20]))
        store.put("client-a", "late", sample(2, 100))
        with pytest.raises(sej.OffsetTooSmallError) as deleted:
            client.get("late", 5)
        assert deleted.value.first_available == 100
        assert store.get("client-a", "j", 0) == messages[:3]


def test_a_disk_that_fails_is_logged_with_its_path_which_no_client_sees(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "write" and file is not None and file.path.endswith(".jnl"):
            raise OSError(errno.EIO, "Input/output error", file.path)

    with connected(tmp_path / "hub", store={"disk": HookedDisk(hook, OS)}) as (_, client):
        with pytest.raises(DirectoryUnavailableError, match="the hub's disk failed: Input/output error") as failed:
            client.put("j", sample(1))
        shutil.rmtree(tmp_path / "hub")
        with pytest.raises(DirectoryUnavailableError, match="try again later: No such file or directory") as gone:
            client.put("another", sample(1))
    assert str(tmp_path) not in str(failed.value) + str(gone.value)
    assert [(str(tmp_path) in record.getMessage(), record.exc_info) for record in caplog.records] == [(True, None)] * 2


def test_a_batch_over_the_limit(tmp_path: Path) -> None:
    large = [sej.Message(0, 0, 0, b"", b"x" * 200_000)]
    with connected(tmp_path, server={"max_message_bytes": 100_000}) as (store, client):
        with pytest.raises(TooLargeError):
            client.put("j", large)
        with pytest.raises(TooLargeError):
            list(client.copy("j", [packed(large)]))
        assert client.put("j", sample(3)) == 3
        assert store.sources() == [hub.Source("client-a", "j")]


def test_garbage_on_the_port_and_in_the_requests(tmp_path: Path) -> None:
    with connected(tmp_path) as (store, client):
        host, _, port = client.address.rpartition(":")
        http_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), http_2 + b"\xff" * 500):
            with socket.create_connection((host, int(port)), timeout=20) as plug:
                plug.sendall(garbage)
                plug.shutdown(socket.SHUT_WR)
                while plug.recv(4096):
                    pass
        for name in ("Put", "Get", "Where"):
            with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
                raw(client.address, name, b"\xff\xff\xff\xff")
        with refused_with(grpc.StatusCode.UNIMPLEMENTED):
            raw(client.address, "Nothing", b"")
        assert client.put("j", sample(3)) == 3
        assert store.sources() == [hub.Source("client-a", "j")]


def test_two_names_in_one_stream_are_refused(tmp_path: Path) -> None:
    first, second = packed(sample(1)), packed(sample(2)[1:])
    with serving(tmp_path) as (store, server):
        with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
            copied(server.address, [copy_request(first, "a", "j", create=True), copy_request(second, "b", "j")])
        assert store.sources() == [hub.Source("a", "j")]


def test_the_call_of_a_silent_sender_is_ended(tmp_path: Path) -> None:
    over, offsets = threading.Event(), list[int]()
    with connected(tmp_path, server={"idle_s": 0.1}) as (_, client):
        with pytest.raises(hub.UnavailableError, match="no message arrived"):
            offsets.extend(client.copy("j", itertools.chain([packed(sample(1))], silence(over))))
        over.set()
    assert offsets == [1]


def silence(over: threading.Event) -> Iterator[bytes]:
    """Requests that never come."""
    assert over.wait(60)
    yield from ()


def test_unknown_callers_take_no_place(tmp_path: Path) -> None:
    tokens = Tokens([Grant(hash_token("known"), "write", ("a",))])
    with connected(tmp_path, "a", server={"tokens": tokens, "max_streams": 1}, token="known") as (_, client):
        for token in (None, "x"):
            over = threading.Event()
            with refused_with(grpc.StatusCode.UNAUTHENTICATED):
                copied(client.address, silence(over), token)
            over.set()
        assert list(client.copy("j", [packed(sample(1))])) == [1]


def test_a_hub_with_nothing_in_it_tells_strangers_nothing(tmp_path: Path) -> None:
    tokens = Tokens([Grant(hash_token("known"), "read", ("*",))])
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tokens=tokens) as server:
        for token in (None, "unknown"):
            with Client(server.address, token=token) as client, pytest.raises(hub.AccessError):
                client.journals("somebody")
        with Client(server.address, token="known") as client:
            assert client.journals("somebody") == []


@pytest.mark.parametrize("begun", [True, False])
def test_an_idle_copy_ends_with_its_token(tmp_path: Path, begun: bool) -> None:
    token, path = make_token(), tmp_path / "tokens"
    path.write_text(f"{hash_token(token)} write a\n")
    over = threading.Event()
    with (
        hub.Store(tmp_path / "hub") as store,
        Server(store, "127.0.0.1:0", tokens=path, idle_s=3600.0) as server,
        Client(server.address, client_id="a", token=token, timeout_s=60.0) as client,
    ):
        copier = client.copy("j", itertools.chain([packed(sample(1))] if begun else [], silence(over)))
        copying = Worker(lambda: list(copier))
        until(lambda: server.service.copiers and store.end_offset("a", "j") == int(begun))
        replace(path, "# no one\n")
        with pytest.raises(hub.AccessError, match="unknown token"):
            copying.result()
        over.set()
        until(lambda: not server.service.copiers)


def test_a_copy_that_names_its_journal_late_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identify, identified = Guard.identify, threading.Semaphore(0)

    def counted(self: Guard, *args: Any) -> None:
        identify(self, *args)
        identified.release()

    def requests() -> Iterator[bytes]:
        for _ in range(2):  # when the call starts, and after a second without a request
            assert identified.acquire(timeout=60)
        yield copy_request(packed(sample(1)), "victim", "j", create=True)

    monkeypatch.setattr(Guard, "identify", counted)
    token = make_token()
    tokens = Tokens([Grant(hash_token(token), "write", ("attacker",))])
    with serving(tmp_path / "hub", tokens=tokens) as (store, server):
        with refused_with(grpc.StatusCode.PERMISSION_DENIED):
            copied(server.address, requests(), token)
        assert store.sources() == []


def test_an_unread_stream_ends_with_its_token(tmp_path: Path) -> None:
    token, path = make_token(), tmp_path / "tokens"
    path.write_text(f"{hash_token(token)} read *\n")
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0", tokens=path) as server:
        store.put("a", "j", [sej.Message(number, 1, 0, b"", bytes(1 << 20)) for number in range(10)])
        with grpc.insecure_channel(server.address, options=[*OPTIONS, *SMALL_WINDOW]) as channel:
            read: Any = channel.unary_stream("/hub.Hub/Read", pb.ReadRequest.SerializeToString, None)
            shown = [("authorization", f"Bearer {token}")]
            call = read(pb.ReadRequest(ClientID="a", JournalDir="j"), metadata=shown)
            until(lambda: server.service.answers.used)
            path.write_text("# no one\n")
            until(lambda: not server.service.streams)
            assert server.counts().refusals == {"access": 1}
            with pytest.raises(grpc.RpcError):
                list(call)
        assert server.counts().refusals == {"access": 1}  # the call's own thread may have asked once more


@pytest.mark.parametrize(
    ("token", "said"),
    [("known", "does not let you write for 'b'; ask the hub's operator"), ("secret", "unknown token")],
)
def test_a_refused_token_is_logged_with_the_peers_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, said: str
) -> None:
    tokens = Tokens([Grant(hash_token("known"), "write", ("a",))])
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tokens=tokens) as server:
        for _ in range(20):
            with Client(server.address, client_id="b", token=token) as client, pytest.raises(hub.AccessError):
                client.put("j", sample(1))
        (record,) = [record for record in caplog.records if record.name == "hub.wire.access"]
        assert re.fullmatch(rf"refused ipv4:127\.0\.0\.1:\d+: .*{said}.*", record.getMessage())
        assert "secret" not in record.getMessage()
        assert server.counts().refusals == {"access": 20}


# --- who is let in


def test_plain_text_stays_on_this_machine(tmp_path: Path) -> None:
    with hub.Store(tmp_path) as store:
        for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "hub.example.com:0"):
            with pytest.raises(ValueError, match="TLS"):
                Server(store, address)
        with Server(store, "0.0.0.0:0", allow_plaintext=True) as server:
            assert server.address.startswith("0.0.0.0:")
        with Server(store, "127.0.0.1:0") as server, pytest.raises(OSError, match=r": Address already in use$"):
            Server(store, server.address)
    with pytest.raises(ValueError, match="plain text"):
        Client("hub.example.com:7890", client_id="a", token="secret")


def test_tokens_have_roles(tmp_path: Path) -> None:
    write, read, expired, foreign = (make_token() for _ in range(4))
    tokens = Tokens([
        Grant(hash_token(write), "write", ("client-a",)),
        Grant(hash_token(read), "read", ("client-*",)),
        Grant(hash_token(expired), "write", ("client-a",), time.time() - 1),
    ])  # fmt: skip
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tokens=tokens) as server:

        def as_caller(token: str | None, client_id: str = "client-a") -> Client:
            return Client(server.address, client_id=client_id, token=token)

        with as_caller(write) as client:
            assert client.put("j", sample(2)) == 2
            assert client.end_offset("j") == 2
            assert list(client.copy("j", [packed(sample(3))])) == [3]
            for look in (partial(client.get, "j", 0), lambda: list(client.read_encoded("j", 0)), client.journals):
                with pytest.raises(hub.AccessError, match=r"the token (lets|does not let) you"):
                    look()
        with as_caller(read) as client:
            assert client.get("j", 0) == sample(3)
            assert list(client.read_encoded("j", 0)) == [packed(sample(3))]
            assert [listed.journal_dir for listed in client.journals()] == ["j"]
            assert len(next(client.follow("j", 0))) == 3
            assert client.end_offset("j") == 3
            for write_attempt in (lambda: client.put("j", sample(4)), lambda: [*client.copy("j", [packed(sample(4))])]):
                with pytest.raises(hub.AccessError, match="let you write"):
                    write_attempt()
        with (
            as_caller(write, "client-b") as client,
            pytest.raises(hub.AccessError, match="let you write or read for 'client-b'"),
        ):
            client.end_offset("j")
        with as_caller(write, "client-b") as client, pytest.raises(hub.AccessError, match="client-b") as refused:
            client.put("j", sample(1))
        assert refused.value.known
        for token, words in (
            (None, "requires a token: pass token=, --token-file or hubToken"),
            (foreign, "unknown token"),
            (expired, "expired"),
        ):
            with as_caller(token) as client:
                for attempt in (
                    lambda: client.put("j", sample(4)),
                    lambda: client.get("j", 0),
                    lambda: client.where("j"),
                    lambda: list(client.copy("j", [packed(sample(4))])),
                    lambda: next(client.follow("j", 0)),
                    lambda: list(client.read_encoded("j", 0)),
                    lambda: client.journals(),
                ):  # fmt: skip
                    with pytest.raises(hub.AccessError, match=words) as refused:
                        attempt()
                    assert not refused.value.known
        assert store.sources() == [hub.Source("client-a", "j")]
        assert store.end_offset("client-a", "j") == 3


def test_the_file_of_tokens_is_read_again(tmp_path: Path) -> None:
    first, second = make_token(), make_token()
    path = tmp_path / "tokens"
    write = partial(replace, path)
    write(f"# ours\n{hash_token(first)}  write  a  2999-01-01T00:00:00Z  # until then\n")
    with (
        hub.Store(tmp_path / "hub") as store,
        Server(store, "127.0.0.1:0", tokens=path) as server,
        Client(server.address, client_id="a", token=first) as old,
        Client(server.address, client_id="a", token=second) as new,
    ):
        assert old.put("j", sample(1)) == 1
        with pytest.raises(hub.AccessError):
            new.put("j", sample(2))
        write(f"{hash_token(second)} write a\n")
        assert new.put("j", sample(2)) == 2
        with pytest.raises(hub.AccessError):
            old.put("j", sample(3))
        write("not a token at all\n")
        with pytest.raises(hub.UnavailableError, match="list of tokens"):
            new.put("j", sample(3))
        write(f"{hash_token(second)} write a\n")
        assert new.put("j", sample(3)) == 3
    assert hashlib.sha256(second.encode()).hexdigest() == hash_token(second)


@pytest.mark.parametrize(
    "line",
    ["x", "00 write a", "g" * 64 + " write a", "0" * 64 + " write a*", "0" * 64 + " admin a",
     "0" * 64 + " read * 2999-01-01T00:00:00", "0" * 64 + " read * tomorrow", "0" * 64 + " read a b c"],
)  # fmt: skip
def test_a_bad_line_among_the_tokens_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "tokens").write_text(f"# first\n{line}\n")
    with pytest.raises(hub.AccessError, match="line 2"):
        Tokens(tmp_path / "tokens")


def test_tokens_may_be_written_by_other_hands(tmp_path: Path) -> None:
    token = make_token()
    (tmp_path / "tokens").write_bytes(b"# M\xfcller\n" + hash_token(token).upper().encode() + b" write a\n")
    assert Tokens(tmp_path / "tokens").grant(token, 0.0).clients == ("a",)
    (tmp_path / "tokens").write_bytes(hash_token(token).encode() + b" write M\xfcller\n")
    with pytest.raises(hub.AccessError, match="line 1"):
        Tokens(tmp_path / "tokens")


def test_a_failed_connection_suggests_the_cause(tmp_path: Path) -> None:
    ca = CERTIFICATES / "ca.pem"
    pair = CERTIFICATES / "server.pem", CERTIFICATES / "server.key"
    for tls, shown, words in (
        (ServerTLS(*pair), None, "may require TLS: pass .* --ca or hubCa in Spark"),
        (None, ClientTLS(ca), "plain text"),
        (ServerTLS(*pair), ClientTLS(CERTIFICATES / "foreign.pem"), "not signed by the given authority"),
        (
            ServerTLS(*pair),
            ClientTLS(ca, server_name="elsewhere"),
            "another name: pass server_name, --server-name or hubServerName",
        ),
        (ServerTLS(*pair, client_ca=ca), ClientTLS(ca), "mutual TLS"),
    ):
        with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tls=tls) as server:
            client = Client(server.address, client_id="a", tls=shown, timeout_s=20.0)
            with client, pytest.raises(hub.UnavailableError, match=words):
                client.where("j")


def test_files_that_are_not_certificates_are_named_early(tmp_path: Path) -> None:
    none, missing, key = tmp_path / "none", tmp_path / "missing", CERTIFICATES / "client-a.key"
    none.write_bytes(b"\xffgarbage")
    good, other = CERTIFICATES / "client-a.pem", CERTIFICATES / "foreign.key"
    wrong: list[Any] = [(None, good, None), (None, None, key), (None, none, key), (None, good, none), (none, good, key)]
    for files in (*wrong, (None, good, other)):
        with pytest.raises(ValueError, match=r"PEM|needs its private key"):
            Client("127.0.0.1:1", tls=ClientTLS(*files))
    for files in ((missing, None, None), (None, missing, key), (None, good, missing)):
        with pytest.raises(FileNotFoundError, match=r"expected a PEM file.*missing"):
            Client("127.0.0.1:1", tls=ClientTLS(*files))
    with hub.Store(tmp_path / "hub") as store:
        for served in (ServerTLS(good, other), ServerTLS(none, key), ServerTLS(good, key, none), ServerTLS(key, good)):
            with pytest.raises(ValueError, match="PEM"):
                Server(store, "127.0.0.1:0", tls=served)
        with pytest.raises(FileNotFoundError, match=r"expected a PEM file.*missing"):
            Server(store, "127.0.0.1:0", tls=ServerTLS(good, missing))
    for token in ("tok\N{LATIN SMALL LETTER E WITH ACUTE}n", "two\nlines"):
        with pytest.raises(ValueError, match="ASCII"):
            Client("127.0.0.1:1", token=token)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "expired",
            r"expired\.pem: this certificate expired at 2024-02-29T12:34:56Z; renew the file, then start again",
        ),
        ("future", r"future\.pem: this certificate is valid from 2100-01-01T00:00:00Z on; check the clock"),
    ],
)
def test_a_servers_certificate_that_is_out_of_date_is_refused(tmp_path: Path, name: str, said: str) -> None:
    certificate, key = CERTIFICATES / f"{name}.pem", CERTIFICATES / "expired.key"
    sej.Writer(tmp_path / "j").close()
    with hub.Store(tmp_path / "root") as store, pytest.raises(sej.SejError, match=said):
        Server(store, "127.0.0.1:0", tls=ServerTLS(certificate, key))
    with pytest.raises(sej.SejError, match=said):
        PageServer([tmp_path / "j"], port=0, certificate=certificate, key=key)


def test_a_client_names_its_expired_certificate_and_reads_the_renewed_one(tmp_path: Path) -> None:
    def install(*names: str) -> None:
        for name in names:
            shutil.copyfile(CERTIFICATES / name, tmp_path / f"a{Path(name).suffix}.new")
            os.replace(tmp_path / f"a{Path(name).suffix}.new", tmp_path / f"a{Path(name).suffix}")

    ca = CERTIFICATES / "dated-ca.pem"
    install("expired.pem", "expired.key")
    mine = ClientTLS(ca, tmp_path / "a.pem", tmp_path / "a.key")
    said = rf"{re.escape(str(tmp_path / 'a.pem'))}: this certificate expired at 2024-02-29T12:34:56Z; renew the file"
    tls = ServerTLS(CERTIFICATES / "renewed.pem", CERTIFICATES / "renewed.key", client_ca=ca)
    with serving(tmp_path, tls=tls) as (_, server), Client(server.address, client_id="client-a", tls=mine) as client:
        with pytest.raises(hub.UnavailableError, match=said):
            client.put("j", sample(1))
        install("renewed.pem")  # its key is not there yet
        with pytest.raises(hub.UnavailableError):
            client.put("j", sample(1))
        install("renewed.key")
        with pytest.raises(hub.UnavailableError, match="were renewed: the next call uses them"):
            client.put("j", sample(1))
        assert client.put("j", sample(1)) == 1


def test_mutual_tls_names_the_client(tmp_path: Path) -> None:
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key", client_ca=CERTIFICATES / "ca.pem")
    ca = CERTIFICATES / "ca.pem"
    mine = ClientTLS(ca, CERTIFICATES / "client-a.pem", CERTIFICATES / "client-a.key")
    with serving(tmp_path, tls=tls) as (store, server):
        with Client(server.address, client_id="client-a", tls=mine) as client:
            assert client.put("j", sample(3)) == 3
            assert client.get("j", 0) == sample(3)
        with Client(server.address, client_id="client-b", tls=mine) as client:
            with pytest.raises(hub.AccessError, match="client-a") as refused:
                client.put("j", sample(3))
            assert refused.value.known
        for shown in (ClientTLS(ca), ClientTLS(ca, CERTIFICATES / "foreign.pem", CERTIFICATES / "foreign.key")):
            client = Client(server.address, client_id="client-a", tls=shown, timeout_s=5.0)
            with client, pytest.raises(hub.UnavailableError):
                client.put("j", sample(4))
        assert store.end_offset("client-a", "j") == 3


# --- how it lives and ends


def test_health(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, server), grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "hub.Hub"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with refused_with(grpc.StatusCode.UNIMPLEMENTED):
            list(reflection(iter([b""])))


def test_stopping_acknowledges_what_was_taken(tmp_path: Path) -> None:
    messages = sample(100)
    with serving(tmp_path) as (store, server):
        closed = threading.Event()  # the stream is still open when the server stops
        with Client(server.address, client_id="a") as client:
            stream = client.copy("j", itertools.chain([packed(messages)], silence(closed)))
            assert next(stream) == 100
            closing = Worker(server.close)
            with pytest.raises(hub.UnavailableError, match="stopping"):
                next(stream)
            closing.result()
            closed.set()
            with pytest.raises(hub.UnavailableError):
                client.put("j", messages)
        assert store.end_offset("a", "j") == 100


def test_a_client_that_was_closed_says_so(tmp_path: Path) -> None:
    with connected(tmp_path) as (_, client):
        client.put("j", sample(1))
        client.close()
        client.close()
        with pytest.raises(sej.ClosedError, match="the client is closed; open another one") as refused:
            client.put("j", sample(2))
        assert refused.value.path == f"hub at {client.address}"


def test_an_unknown_journal_and_a_missing_client_id_are_named(tmp_path: Path) -> None:
    with connected(tmp_path) as (store, client):
        unknown = r"the hub has no journal 'j' of client 'client-a'; `sej hub ls` on its machine lists them"
        with pytest.raises(sej.JournalNotFoundError, match=unknown):
            store.get("client-a", "j", 0)
        for attempt in (lambda: client.get("j", 0), lambda: next(client.read_encoded("j", 0))):
            with pytest.raises(sej.JournalNotFoundError, match=unknown):
                attempt()
        with pytest.raises(sej.InvalidNameError, match=r"got ''; pass client_id to Client, or to the call"):
            client.get("j", 0, client_id="")


@pytest.mark.parametrize(
    "address",
    ["localhost", "hub.example.com", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:", ":7890", "[::1]", "::1:80", "a:b:80",
     "a b:80", "unix:", "http://localhost:80", "127.0.0.1:\N{SUPERSCRIPT TWO}"],
)  # fmt: skip
def test_an_address_without_a_port_is_refused(tmp_path: Path, address: str) -> None:
    """gRPC would try port 443 until the deadline, or the lowest 16 bits of a port."""
    wrong = rf"{re.escape(repr(address))} is not the address of a hub; expected host:port with a port of 0 to 65535"
    with pytest.raises(ValueError, match=wrong):
        Client(address)
    with hub.Store(tmp_path) as store, pytest.raises(ValueError, match=wrong):
        Server(store, address)


@pytest.mark.parametrize(
    "address", ["a:1", "[::1]:80", "[fe80::1%eth0]:80", "dns:///a:80", "ipv4:127.0.0.1:80", "unix:/a"]
)
def test_an_address_with_a_port_is_accepted(address: str) -> None:
    assert absolute_address(address) == address


def test_no_server_at_the_address(port: int) -> None:
    refusal = pytest.raises(hub.UnavailableError, match="no hub listens on this address: check it, or start the hub")
    with Client(f"127.0.0.1:{port}", client_id="a") as client, refusal:
        client.put("j", sample(1))


def test_a_unix_socket_is_found_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "50% off?").mkdir()
    (tmp_path / "deep" / ("d" * 100)).mkdir(parents=True)
    for folder, absolute in (("50% off?", "/50%25%20off%3F/hub.sock"), (f"deep/{'d' * 100}", "unix:hub.sock")):
        monkeypatch.chdir(tmp_path / folder)
        with hub.Store(tmp_path / "root") as store, Server(store, "unix:hub.sock") as server:
            assert server.address.endswith(absolute)
            clients = [Client(address, client_id="a") for address in ("unix:hub.sock", server.address)]
            monkeypatch.chdir("/" if absolute.startswith("/") else tmp_path / folder)  # a longer path stays relative
            for client in clients:
                with client:
                    assert client.put("j", sample(3)) == 3
    assert absolute_address("unix:///a") == "unix:///a"
    assert absolute_address("unix-abstract:a") == "unix-abstract:a"
    assert absolute_address("unix.example.com:1") == "unix.example.com:1"


def root_lock(root: Path) -> Lock:
    """The lock that the hub of another process holds."""
    return Lock(root / ".serving.lck", what="the test's root")


def test_one_hub_serves_a_root(tmp_path: Path) -> None:
    """The servers of a store share it, as for two addresses. Until the last has ended, others are refused."""
    address = "127.0.0.1:0"
    with hub.Store(tmp_path) as store, hub.Store(tmp_path) as other:
        with (
            root_lock(tmp_path),
            pytest.raises(sej.LockedError, match=rf"root is held by pid={os.getpid()} .*close it"),
        ):
            Server(store, address)
        first, second = Server(store, address), Server(store, address)
        with pytest.raises(sej.LockedError, match="root is held"):
            Server(other, address)
        for server in (first, second):
            with pytest.raises(sej.LockedError, match="the test's root is held"):
                root_lock(tmp_path).acquire()
            server.close()
        with pytest.raises(OSError, match="cannot listen"):
            Server(store, "192.0.2.1:1", allow_plaintext=True)
        root_lock(tmp_path).acquire().release()


def test_a_forked_child_serves_nothing(tmp_path: Path) -> None:
    """It has copies of the servers, not the lock: to close one there ends nothing here."""
    with hub.Store(tmp_path) as store:
        block = store.serving()
        block.__enter__()
        if (child := os.fork()) == 0:
            code = 1
            with contextlib.suppress(sej.LockedError), store.serving():
                code = 2
            block.__exit__(None, None, None)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        with pytest.raises(sej.LockedError):
            root_lock(tmp_path).acquire()
        block.__exit__(None, None, None)
        root_lock(tmp_path).acquire().release()


def test_a_second_command_does_not_serve_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.Store(tmp_path).close()
    with root_lock(tmp_path):
        done = inside(monkeypatch, "hub", "serve", "--address", "127.0.0.1:0", tmp_path)
    assert (done.code, f"this hub's root is held by pid={os.getpid()} " in done.err) == (3, True)


# --- bytes


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1), st.binary(max_size=12), st.data())
def test_a_stage_request_is_what_protobuf_reads(data: bytes, position: int, more: bytes, drawn: st.DataObject) -> None:
    head = pb.StageRequest(ClientID="a", Job="0f", Task="ab", Shard=1023, Position=position)
    request = stage_request(head, memoryview(data))
    whole = pb.StageRequest(ClientID="a", Job="0f", Task="ab", Shard=1023, Position=position, Encoded=data)
    assert pb.StageRequest.FromString(request) == whole
    found, rows = open_encoded(pb.StageRequest, request)
    assert (found, rows) == (head, data)
    assert type(rows) is memoryview

    odd = bytearray(request + more)
    for _ in range(drawn.draw(st.integers(0, 3))):
        odd[drawn.draw(st.integers(0, len(odd) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        expected = pb.StageRequest.FromString(bytes(odd))
    except ProtobufDecodeError:
        with pytest.raises(sej.InvalidMessageError):
            open_encoded(pb.StageRequest, bytes(odd))
        return
    found, rows = open_encoded(pb.StageRequest, bytes(odd))
    assert rows == expected.Encoded
    for each in (found, expected):
        each.ClearField("Encoded")
    assert found == expected


@pytest.mark.parametrize(
    "row", [("0", 0, 0, b"", b""), (0, 0, 0, "", b""), (0, 0.5, 0, b"", b""), (0, 0, None, b"", 7)]
)
def test_a_message_of_wrong_types_is_refused_before_it_is_sent(row: Any) -> None:
    with Client("127.0.0.1:1", client_id="c") as client, pytest.raises(TypeError):
        client.put("j", [sej.Message(*row)])


def test_the_generated_files_are_current() -> None:
    from tools.protos import stale

    assert stale() == []


def test_a_connection_over_a_slow_line(tmp_path: Path) -> None:
    """The hub's first bytes take longer than a round trip around the earth."""
    held = threading.Event()

    def late(data: bytes) -> bytes:
        held.wait(0.4)
        return data

    with (
        serving(tmp_path) as (_, server),
        Pipe(server.address, answer=late) as line,
        Client(line.address, client_id="a") as client,
    ):
        assert client.put("j", sample(1)) == 1
