"""The hub over HTTP, with real sockets: what arrives, what is refused, who is let in, who waits, how it ends."""

import contextlib
import http.client
import json
import os
import random
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import hub
import sej
from hub.http import HttpServer, _Protocol, _send_pieces
from hub.tokens import Grant, hash_token
from hub.wire import Client, Server, ServerTLS, Tokens, make_token
from tests.hub.support import CERTIFICATES, ROOT, Killed, until
from tests.sej.support import read_all

ORDERS = "/journals/EWR/orders"
JSON = {"content-type": "application/json"}
CLIENTS = {
    "node": ["node", str(ROOT / "examples" / "http" / "client.mjs")],
    "go": ["go", "run", str(ROOT / "examples" / "http" / "client.go")],
}


class Served:
    """A hub over HTTP in this process."""

    def __init__(self, root: Path, stack: contextlib.ExitStack, **options: Any) -> None:
        store_options = {name: options.pop(name) for name in ("max_client_bytes", "min_free_bytes") if name in options}
        tls: ServerTLS | None = options.get("tls")
        self.store = stack.enter_context(hub.Store(root, **store_options))
        self.server = stack.enter_context(Server(self.store, "127.0.0.1:0", **options))
        self.http = stack.enter_context(HttpServer(self.server, "127.0.0.1:0", tls=tls))
        self.port = int(self.http.url.rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, *, context: Any = None, **headers: str) -> tuple[int, Any]:
        return ask(self.port, method, path, body, context=context, **headers)

    def put(self, *values: str, offset: int | None = None) -> tuple[int, Any]:
        path = ORDERS if offset is None else f"{ORDERS}?offset={offset}"
        return self.ask("POST", path, [{"value": value} for value in values])


def ask(port: int, method: str, path: str, body: Any = None, *, context: Any = None, **headers: str) -> tuple[int, Any]:
    """Send a request, JSON unless it is bytes; return the status, and the JSON of the answer."""
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    with contextlib.closing(
        kind("127.0.0.1", port, timeout=60, **({} if context is None else {"context": context}))
    ) as made:
        is_json = body is not None and not isinstance(body, bytes)
        sent = {name.replace("_", "-"): value for name, value in headers.items()} | (JSON if is_json else {})
        made.request(method, path, json.dumps(body) if is_json else body, sent)
        answer = made.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


@contextlib.contextmanager
def events(port: int, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """Follow a journal; the answer's lines are read as they come."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as made:
        made.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        yield made.getresponse()


def event(answer: http.client.HTTPResponse) -> tuple[str, Any]:
    """Return the first line of the next event, and its data."""
    lines = [answer.readline().decode() for _ in range(3)]
    return lines[0].strip(), json.loads(lines[1].removeprefix("data: "))


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


def test_messages_come_back_as_they_were_sent(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path / "hub", stack)
    rows: list[dict[str, Any]] = [
        {"key": "", "value": "", "type": 0, "timestamp_ns": None},
        {"key": "é\n", "value": 'ä"\u2028\r\n', "type": 255, "timestamp_ns": 2**63 - 1},
        {"key_b64": "/w==", "value_b64": "gAA=", "type": 1, "timestamp_ns": -1},
    ]
    assert served.ask("POST", ORDERS, rows) == (200, {"offset": 0, "next_offset": 3})
    raw = bytes(range(256)) * 300
    assert served.ask("POST", f"{ORDERS}?key=%C3%A9&type=7&timestamp_ns=-5", raw) == (
        200,
        {"offset": 3, "next_offset": 4},
    )
    assert served.ask("POST", ORDERS, []) == (200, {"offset": 4, "next_offset": 4})
    assert served.ask("POST", ORDERS, {"value": "now"})[0] == 200
    stored = read_all(tmp_path / "hub" / "EWR.orders")
    assert stored[:2] == [
        sej.Message(0, sej.NO_TIMESTAMP, 0, b"", b""),
        sej.Message(1, 2**63 - 1, 255, "é\n".encode(), 'ä"\u2028\r\n'.encode()),
    ]
    assert stored[2:4] == [sej.Message(2, -1, 1, b"\xff", b"\x80\x00"), sej.Message(3, -5, 7, "é".encode(), raw)]
    _, answer = served.ask("GET", ORDERS)
    assert answer["next_offset"] == 5
    for sent, found in zip(rows, answer["messages"], strict=False):
        assert {name: found[name] for name in sent} == sent
    _, part = served.ask("GET", f"{ORDERS}?offset=1&limit=2")
    assert ([row["offset"] for row in part["messages"]], part["next_offset"]) == ([1, 2], 3)
    assert served.ask("GET", f"{ORDERS}?offset=5") == (200, {"messages": [], "next_offset": 5})
    assert served.ask("GET", f"{ORDERS}?max_bytes=1")[1]["next_offset"] == 1


def test_the_lines_of_curl_on_the_page_do_what_it_says(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack)
    page = (ROOT / "docs" / "howto" / "http.md").read_text()
    calls = re.findall(r"^\$ (curl .*)\n((?:[^`$].*\n)*)", page, re.MULTILINE)
    answers = []
    for line, answer in calls:
        words = shlex.split(line.replace("localhost:7891", f"127.0.0.1:{served.port}"))
        with subprocess.Popen([*words, "--silent"], stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            answers.append("".join(islice(curl.stdout, 9)))  # three events, of a follower that never ends
            curl.kill()
        assert not answer or json.loads(answers[-1]) == json.loads(answer)
    _, _, get, followed, take, commit = answers
    assert [row["value"] for row in json.loads(get)["messages"][:2]] == ["three apples", "a"]
    assert re.findall("^id: (.*)", followed, re.MULTILINE) == ["1", "2", "3"]
    assert [json.loads(text) for text in (take, commit)] == [{"offset": 0, "kept": False}, {"offset": 3, "kept": True}]


REFUSED: list[tuple[str, str, Any, int, str, str]] = [
    ("GET", "/journals/EWR/none", None, 404, "unknown", r"the hub has no journal 'none' of client 'EWR'; `sej hub ls`"),
    ("GET", "/journals/EWR/none/events", None, 404, "unknown", r"the hub has no journal 'none'"),
    ("GET", "/journals/EWR", None, 404, "address", r"use POST or GET /journals/CLIENT/JOURNAL"),
    ("PUT", ORDERS, None, 405, "address", r"use POST or GET"),
    ("GET", "/journals/E%20R/orders", None, 400, "name", r"a client id must be ASCII letters"),
    ("GET", f"{ORDERS}?limt=1", None, 400, "argument", r"unknown parameter 'limt'; this address has offset, limit"),
    ("GET", f"{ORDERS}?offset=-1", None, 400, "argument", r"offset must be 0 to \d+, got '-1'"),
    ("GET", f"{ORDERS}?limit=0", None, 400, "argument", r"limit must be 1 to \d+, got '0'"),
    ("POST", ORDERS, {"offset": 1, "value": ""}, 400, "message", r"message 0 must be a JSON object with value or"),
    ("POST", ORDERS, [{"value": "a"}, {"value": 1}], 400, "message", r"value must be a string, or value_b64 .*, got 1"),
    ("POST", ORDERS, {"value_b64": "?"}, 400, "message", r"value or value_b64 cannot be read: "),
    ("POST", ORDERS, {"value": "\ud800"}, 400, "message", r"value or value_b64 cannot be read: "),
    ("POST", ORDERS, {"value": "a", "type": 256}, 400, "message", r"type of message 0 must be 0 to 255, got 256"),
    ("POST", ORDERS, {"value": "a", "timestamp_ns": 1.5}, 400, "message", r"timestamp_ns of message 0 must be -\d+ to"),
    ("POST", f"{ORDERS}?offset=3", {"value": "a"}, 409, "gap", r"EWR\.orders: messages 2 to 2 are missing; send from"),
    ("POST", f"{ORDERS}?offset=1", {"value": "x"}, 409, "conflict", r"EWR\.orders: the hub has another message with"),
    ("POST", ORDERS, b"x" * 70_000, 413, "too-large", r"the request has more than 65536 bytes; send fewer messages"),
    ("POST", f"{ORDERS}/readers/r", {"holder": "me"}, 409, "lease-lost", r"reader 'r' of EWR\.orders is not held by"),
    ("POST", f"{ORDERS}/readers/r", {"holder": 1}, 400, "argument", r"a field of the request has a wrong type or size"),
    ("POST", f"{ORDERS}/readers/r", {"hold": "me"}, 400, "argument", r"unknown field 'hold'; use holder, lease_s"),
    ("POST", f"{ORDERS}/readers/r", [], 400, "argument", r"the request must be a JSON object, got b'\[\]'"),
    ("POST", "/journals/EWR/full", b"x" * 60_000, 507, "quota", r"client 'EWR' would exceed its quota: \d+ of 50000"),
]  # fmt: skip


def test_a_refusal_is_json_with_the_hubs_sentence(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack, max_message_bytes=1 << 16, max_client_bytes=50_000)
    served.put("a", "b")
    for method, path, body, status, name, text in REFUSED:
        found, row = served.ask(method, path, body)
        assert (found, row["error"]) == (status, name), (path, row)
        assert re.match(text, row["message"]), (path, row)
    assert served.ask("POST", f"{ORDERS}?offset=3", {"value": "a"})[1]["expected"] == 2
    status, row = served.ask("POST", ORDERS, b"{", content_type="application/json")
    assert (status, row["error"]) == (400, "message")
    assert served.server.counts().refusals["gap"] == 2
    with Client(served.server.address, client_id="EWR") as client, pytest.raises(hub.GapError) as refused:
        client.put("orders", [sej.Message(3, 0, 0, b"", b"a")])
    assert refused.value.reason == served.put("a", offset=3)[1]["message"]


def test_a_deleted_offset_says_where_to_continue_and_a_full_disk_to_wait(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    served = Served(tmp_path, stack, min_free_bytes=1 << 62)
    with sej.Writer(tmp_path / "EWR.orders", first_offset=7) as writer:
        writer.append(b"a")
    status, row = served.ask("GET", f"{ORDERS}?offset=3")
    assert (status, row["error"], row["first"]) == (410, "deleted", 7)
    status, row = served.put("b")
    assert (status, row["error"]) == (507, "disk-low")


def test_a_put_that_is_repeated_is_stored_once(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """The hub gives a time to a message without one, and the repeat has another time."""
    served = Served(tmp_path, stack)
    for _ in range(3):
        assert served.put("a", "b", offset=0) == (200, {"offset": 0, "next_offset": 2})
    assert served.put("b", "c", offset=1) == (200, {"offset": 1, "next_offset": 3})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.put("d", offset=3), range(32)))
    assert answers == [(200, {"offset": 3, "next_offset": 4})] * 32
    assert [message.value for message in read_all(tmp_path / "EWR.orders")] == [b"a", b"b", b"c", b"d"]
    assert served.put("a", "x", offset=0)[0] == 409


def test_puts_without_an_offset_never_meet(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """Not even if two have the same bytes and times."""
    served = Served(tmp_path, stack)
    with ThreadPoolExecutor(8) as pool:
        rows = [{"value": "same", "timestamp_ns": 1}] * 3
        answers = list(pool.map(lambda _: served.ask("POST", ORDERS, rows), range(64)))
    assert {status for status, _ in answers} == {200}
    assert sorted(row["offset"] for _, row in answers) == list(range(0, 192, 3))
    assert len(read_all(tmp_path / "EWR.orders")) == 192


def test_tokens_allow_what_they_allow_over_grpc(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    roles = ("write", "append", "read", "reader", "view")
    shown = {role: make_token() for role in roles}
    grants = [Grant(hash_token(token), role, ("EWR",)) for role, token in shown.items()]  # type: ignore[arg-type]
    old = make_token()
    served = Served(tmp_path, stack, tokens=Tokens([*grants, Grant(hash_token(old), "read", ("EWR",), 1.0)]))
    served.store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"a")])
    served.store.put("JFK", "orders", [sej.Message(0, 1, 0, b"", b"a")])
    calls: list[tuple[str, str, Any, set[str]]] = [
        ("POST", f"{ORDERS}?offset=0", {"value": "a", "timestamp_ns": 1}, {"write"}),
        ("POST", ORDERS, {"value": "b"}, {"write", "append"}),
        ("GET", ORDERS, None, {"read", "reader"}),
        ("POST", f"{ORDERS}/readers/r", {"holder": "me", "take": True}, {"reader"}),
        ("GET", "/journals/JFK/orders", None, set()),
        ("POST", "/journals/JFK/orders", {"value": "b"}, set()),
    ]
    for method, path, body, allowed in calls:
        for role in roles:
            token = {"authorization": f"Bearer {shown[role]}"}
            status, row = served.ask(method, path, body, **token)
            assert status == (200 if role in allowed else 403), (method, path, role, row)
        for token in ({}, {"authorization": "Bearer x"}, {"authorization": f"Bearer {old}"}):
            status, row = served.ask(method, path, body, **token)
            assert (status, row["error"]) == (401, "access")


def test_tls_and_client_certificates_are_those_of_the_hub(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key", CERTIFICATES / "ca.pem")
    served = Served(tmp_path, stack, tls=tls)
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    with pytest.raises(OSError):
        served.ask("GET", ORDERS, context=context)
    context.load_cert_chain(CERTIFICATES / "client-a.pem", CERTIFICATES / "client-a.key")
    assert served.ask("POST", "/journals/client-a/orders", {"value": "a"}, context=context)[0] == 200
    status, row = served.ask("POST", ORDERS, {"value": "a"}, context=context)
    assert (status, row["message"][:45]) == (403, "the certificate is for client 'client-a', not")
    with pytest.raises(ValueError, match=r"0\.0\.0\.0:0 can be reached from other machines"):
        HttpServer(served.server, "0.0.0.0:0")
    with pytest.raises(ValueError, match=r"HTTP needs host:port, got 'unix:x'"):
        HttpServer(served.server, "unix:x")


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_a_hub_without_tokens_refuses_what_a_browser_sends_for_another_site(
    tmp_path: Path, stack: contextlib.ExitStack, headers: dict[str, str]
) -> None:
    served = Served(tmp_path, stack)
    assert served.ask("POST", ORDERS, b"x", **headers)[0] == 403
    assert served.store.sources() == []


def test_an_answer_does_not_wait_for_an_acknowledgement(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    made = _Protocol.connection_made

    def noting(protocol: _Protocol, transport: Any) -> None:
        made(protocol, transport)
        found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(_Protocol, "connection_made", noting)
    assert Served(tmp_path, stack).put("a")[0] == 200
    assert found == [1]


def test_a_reader_is_held_renewed_and_committed(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack)
    served.put("a", "b")
    report = f"{ORDERS}/readers/report"
    assert served.ask("POST", report, {"holder": "h:1:x", "take": True}) == (200, {"offset": 0, "kept": False})
    assert served.ask("POST", report, {"holder": "h:2:y", "take": True})[1]["error"] == "held"
    assert served.ask("POST", report, {"holder": "h:1:x", "offset": 2}) == (200, {"offset": 2, "kept": True})
    assert served.ask("POST", report, {"holder": "h:1:x", "offset": 1}) == (200, {"offset": 2, "kept": True})
    assert served.ask("POST", report, {"holder": "h:1:x", "offset": 9})[1]["error"] == "beyond-end"
    assert served.ask("POST", report, {"holder": "h:1:x", "lease_s": 0})[0] == 200
    assert served.ask("POST", report, {"holder": "h:2:y", "take": True}) == (200, {"offset": 2, "kept": True})
    assert sej.read_offset(tmp_path / "EWR.orders", "report") == 2


def test_a_follower_continues_at_its_last_event(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack)
    served.put("a", "b")
    with events(served.port, f"{ORDERS}/events?offset=1") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (event(answer)[0], served.put("c")[0]) == ("id: 2", 200)
        line, row = event(answer)
        assert (line, row["offset"], row["value"]) == ("id: 3", 2, "c")
    with events(served.port, f"{ORDERS}/events?offset=0", last_event_id="2") as answer:
        assert event(answer)[1]["value"] == "c"
        served.http.close()
        assert answer.readline() == b""  # it ends; the browser connects again


def test_a_follower_is_told_what_ends_it(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """A token that is revoked ends the answer with an event, because its status was sent before."""
    tokens = tmp_path / "tokens"
    token = make_token()
    tokens.write_text(f"{hash_token(token)} read EWR\n")
    served = Served(tmp_path / "hub", stack, tokens=tokens)
    served.store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"a")])
    with events(served.port, f"{ORDERS}/events", authorization=f"Bearer {token}") as answer:
        assert event(answer)[0] == "id: 1"
        tokens.write_text("")
        line, row = event(answer)
        assert (line, row["error"]) == ("event: error", "access")
        assert answer.read() == b""


def test_followers_that_leave_take_nothing_with_them(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """They leave before the headers, while they wait, and in the middle of an answer that they do not read."""
    served = Served(tmp_path, stack, max_followers=48)
    big = [sej.Message(offset, 1, 0, b"", os.urandom(1 << 19)) for offset in range(16)]
    served.store.put("EWR", "orders", big)
    dice = random.Random(7)
    for _ in range(40):
        with contextlib.closing(socket.create_connection(("127.0.0.1", served.port))) as made:
            at = dice.choice([0, 15, 16])
            made.sendall(f"GET {ORDERS}/events?offset={at} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            wanted = dice.choice([0, 1, 100, 70_000]) if at < 16 else dice.choice([0, 1])
            while wanted > 0 and (part := made.recv(wanted)):
                wanted -= len(part)
    until(lambda: not served.server.service.followers)
    until(lambda: not served.server.counts().answer_bytes)
    held = [stack.enter_context(events(served.port, f"{ORDERS}/events?offset=16")) for _ in range(48)]
    status, row = served.ask("GET", f"{ORDERS}/events?offset=16")
    assert (status, row["message"]) == (429, "the hub already serves 48 followers, its limit; try again later")
    served.put("end")
    assert [event(answer)[1]["value"] for answer in held] == ["end"] * 48


def unread(served: Served, stack: contextlib.ExitStack, path: str) -> socket.socket:
    """Send a request from a socket with little room, and do not read the answer."""
    made = stack.enter_context(contextlib.closing(socket.socket()))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", served.port))
    made.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return made


def test_readers_that_do_not_read_hold_bounded_memory_and_are_cut_if_others_wait(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    served = Served(tmp_path, stack, answer_bytes=1 << 23, stall_s=0.5, wait_s=60.0)
    served.store.put("EWR", "orders", [sej.Message(at, 1, 0, b"", b"x" * (1 << 20)) for at in range(24)])
    for path in [f"{ORDERS}/events?offset=0", f"{ORDERS}?offset=0&max_bytes=99999999"] * 8:
        unread(served, stack, path)
    until(lambda: served.server.counts().answer_bytes > 1 << 22)
    _, row = served.ask("GET", f"{ORDERS}?offset=0")
    assert len(row["messages"][0]["value"]) == 1 << 20
    until(lambda: served.server.counts().stalled)
    assert served.server.counts().answer_peak_bytes <= 1 << 23
    assert served.put("a")[0] == 200


def test_followers_that_do_not_read_hold_no_memory_besides_that_of_the_answers(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has got an answer, which is in its socket, and waits for the memory of the next one."""
    answered: Counter[object] = Counter()

    async def counting(send: Any, data: bytes) -> None:
        await _send_pieces(send, data)
        answered[send] += 1

    monkeypatch.setattr("hub.http._send_pieces", counting)
    served = Served(tmp_path, stack, answer_bytes=1 << 22, stall_s=60.0)
    served.store.put("EWR", "orders", [sej.Message(at, 1, 0, b"", b"x" * 600_000) for at in range(32)])
    tracemalloc.start()
    stack.callback(tracemalloc.stop)
    for _ in range(100):
        unread(served, stack, f"{ORDERS}/events")
    until(lambda: len(answered) == 100 and served.server.counts().answers_waiting > 90)
    assert tracemalloc.get_traced_memory()[0] < 1 << 24


def test_an_answer_counts_as_the_json_that_it_is(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack)
    served.store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"\x01" * (1 << 21))])
    slow = unread(served, stack, ORDERS)
    until(lambda: served.server.counts().answer_bytes > 2 * 6 << 21)  # each character is \u0001
    slow.close()
    until(lambda: not served.server.counts().answer_bytes)


def test_a_hub_that_stops_cuts_a_caller_that_does_not_read_without_a_traceback(
    tmp_path: Path, stack: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path, stack)
    served.store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"x" * (1 << 24))])  # more than the sockets hold
    slow = unread(served, stack, f"{ORDERS}/events")
    assert sum(len(slow.recv(1 << 10)) for _ in range(100))
    served.http.close()
    assert "Cancel 1 running task(s)" in caplog.text
    assert "ASGI" not in caplog.text


def test_a_request_that_waits_when_the_hub_stops_may_be_repeated(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    served = Served(tmp_path, stack, answer_bytes=1 << 20, stall_s=60.0, wait_s=60.0)
    served.store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"x" * (1 << 24))])  # more than the sockets hold
    unread(served, stack, f"{ORDERS}/events")
    until(lambda: served.server.counts().answer_bytes)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.ask, "GET", ORDERS)
        until(lambda: served.server.counts().answers_waiting)
        served.http.close()
        assert waiting.result() == (503, None)


@pytest.mark.parametrize("stall_s", [60.0, 0.2])
def test_requests_hold_bounded_memory_and_must_come(
    tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, stall_s: float
) -> None:
    monkeypatch.setattr("hub.http._REQUESTS_BYTES", 1 << 20)
    served = Served(tmp_path, stack, stall_s=stall_s)
    made = stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)))
    made.putrequest("POST", ORDERS)
    made.putheader("content-length", "400001")
    made.endheaders(b"x" * 400_000)
    if stall_s > 1:
        until(lambda: served.http._held == 2 * 400_000)  # else the request that asks first could have the memory
        assert served.ask("POST", ORDERS, b"x" * 200_000)[0] == 429
        made.close()
    else:
        answer = made.getresponse()
        said = json.loads(answer.read())["message"]
        assert (answer.status, said) == (429, "the request came too slowly; try again later")
    until(lambda: served.ask("POST", ORDERS, b"x" * 200_000)[0] == 200)


# --- SIGKILL


def produce(port: int, client: str, count: int, stored: list[int]) -> None:
    """Put messages in batches, each again and again until it is acknowledged."""
    at = 0
    while at < count:
        rows = [{"value": f"{client} {number}"} for number in range(at, min(at + 3, count))]
        try:
            status, row = ask(port, "POST", f"/journals/{client}/orders?offset={at}", rows)
        except (OSError, http.client.HTTPException):
            continue
        if status in (429, 503):
            continue
        assert status == 200, row
        at = row["next_offset"]
        stored.append(at)


def test_a_killed_hub_has_every_acknowledged_message_once(tmp_path: Path, port: int) -> None:
    served = Killed("--address", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", tmp_path / "hub")
    clients, count = ("EWR", "JFK", "LGA"), 300
    stored: dict[str, list[int]] = {client: [] for client in clients}
    threads = [
        threading.Thread(target=produce, args=(port, each, count, stored[each]), daemon=True) for each in clients
    ]  # daemons: they try again without a limit if the hub does not start
    try:
        for thread in threads:
            thread.start()
        for kill in range(1, 6):
            until(lambda: sum(map(len, stored.values())) >= kill * 40)  # noqa: B023
            served.restart()
            for client in clients:  # nothing acknowledged is lost
                known = max(stored[client], default=0)
                assert ask(port, "POST", f"/journals/{client}/orders", [])[1]["next_offset"] >= known
        for thread in threads:
            thread.join()
    finally:
        served.kill()
    for client in clients:
        values = [message.value.decode() for message in read_all(tmp_path / "hub" / f"{client}.orders")]
        assert values == [f"{client} {number}" for number in range(count)]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_in_another_language_puts_and_follows_over_kills(name: str, tmp_path: Path, port: int) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"a client of the hub over HTTP was not run, {name} is missing")
    served = Killed("--address", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", tmp_path / "hub")
    url, values = f"http://127.0.0.1:{port}{ORDERS}", [f"é {number}" for number in range(60)]
    env = {**os.environ, "GOCACHE": str(tmp_path / "go"), "GO111MODULE": "off"}
    with contextlib.closing(served):
        ask(port, "POST", ORDERS, {"value": "first"})
        put, follow = (
            subprocess.Popen([*CLIENTS[name], word, url, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            for word in ("put", "follow")
        )
        with put, follow:
            assert put.stdin is not None
            assert follow.stdout is not None
            found = []
            for at in range(0, 60, 20):
                put.stdin.write("".join(f"{value}\n" for value in values[at : at + 20]).encode())
                put.stdin.flush()
                found += [follow.stdout.readline().decode().strip() for _ in range(10)]
                served.restart()
            end = put.communicate(b"\n")[0]
            found += follow.stdout.read().decode().splitlines()
    assert end == b"62\n"
    assert found == values
