"""`sej forward` to a collector, to Loki and to any program: a server that fails, hangs, refuses and redirects."""

import asyncio
import contextlib
import json
import random
import re
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import sej
from hub.asgi import Listener
from sej.contrib import forward as module
from sej.contrib.forward import Forwarder
from sej.contrib.opentelemetry import JournalLogExporter, JournalMetricExporter, JournalSpanExporter
from tests.cli.command import sej as command
from tests.contrib.killing import forkserver
from tests.forking import Piped
from tests.sej.hooks import until
from tests.sej.support import read_all

BAD = "bad"
"""A request with this word is refused."""


class Receiver:
    """Keeps the requests that it takes; it answers with the statuses that a test sets, and hangs at 0."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[str, Any, bytes]] = []
        self._free = asyncio.Event()
        self._listener = Listener("127.0.0.1", 0, "receiver")
        self.address = self._listener.address
        self._listener.start(Starlette(routes=[Route("/{path:path}", self._take, methods=["GET", "POST"])]))

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        status = self.statuses.pop(0) if self.statuses else 204
        if not status:
            await request.receive()  # until the caller has given up
        if status == 302:
            return Response(status_code=302, headers={"location": "/elsewhere"})
        if status == 204 and BAD.encode() in body:
            return Response(status_code=400)
        if status == 204:
            self.requests.append((str(request.url.path), request.headers, body))
        return Response(status_code=status or 500)

    def close(self) -> None:
        self._listener.close()

    def lines(self, kind: str) -> list[tuple[Any, Any]]:
        """The time and value of each message, as often as it came."""
        if kind == "loki":
            streams = [stream for *_, body in self.requests for stream in json.loads(body)["streams"]]
            return [(int(time), line) for stream in streams for time, line in stream["values"]]
        rows = [json.loads(line) for *_, body in self.requests for line in body.splitlines()]
        return [(row["timestamp_ns"], row["value"]) for row in rows]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as found:
        yield found


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", (0.001, 0.01))


@pytest.mark.parametrize("kind", ["loki", "post"])
def test_everything_arrives_though_the_receiver_fails_hangs_and_refuses(
    tmp_path: Path, receiver: Receiver, kind: str
) -> None:
    dice = random.Random(7)
    values = [f"{BAD} {number}" if dice.random() < 0.05 else f"é {number}" for number in range(600)]
    receiver.statuses = dice.choices([204, 500, 503, 429, 408, 260, 0], [12, 2, 2, 2, 2, 2, 1], k=60)
    stop = threading.Event()
    forwarder = Forwarder(tmp_path / "j", f"{kind}+http://{receiver.address}", batch_bytes=200, timeout=0.2)
    with sej.Writer(tmp_path / "j") as writer:
        thread = threading.Thread(target=forwarder.run, args=(stop,))
        thread.start()
        for number, value in enumerate(values):
            writer.append(value.encode(), b"k", timestamp=number)
    try:
        until(lambda: sej.read_offset(tmp_path / "j", "forward") == len(values))
    finally:
        stop.set()
        thread.join()
    sent = [(number, value) for number, value in enumerate(values) if BAD not in value]
    assert receiver.lines(kind) == sent
    letters = read_all(tmp_path / "j" / "dead" / "forward")
    assert [letter.value.decode() for letter in letters] == [value for value in values if BAD in value]
    assert len(receiver.requests) < len(sent)


def test_a_request_to_loki_is_as_its_documentation_says(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEJ_FORWARD_HEADERS", "X-Scope-OrgID=shop")
    with sej.Writer(tmp_path / "logs") as writer:
        writer.append_many([b"a", b"\xff", b"no time", b"b"], timestamp=[1, 2, sej.NO_TIMESTAMP, 10**18])
    assert Forwarder(tmp_path / "logs", f"loki+http://{receiver.address}").run_once() == 4
    assert {headers["x-scope-orgid"] for _, headers, _ in receiver.requests} == {"shop"}
    with sej.Writer(tmp_path / "logs") as writer:
        writer.append(b"c", timestamp=3)
    done = command("forward", "--once", tmp_path / "logs", f"loki+http://{receiver.address}/?job=shop&env=a+b")
    assert done.stdout == b"1 message\n", done.stderr
    paths, headers, bodies = zip(*receiver.requests, strict=True)
    assert set(paths) == {"/loki/api/v1/push"}
    assert {each["content-type"] for each in headers} == {"application/json"}
    assert [json.loads(body)["streams"] for body in bodies] == [
        [{"stream": {"job": "logs"}, "values": [["1", "a"]]}],
        [{"stream": {"job": "logs"}, "values": [["1000000000000000000", "b"]]}],
        [{"stream": {"job": "shop", "env": "a b"}, "values": [["3", "c"]]}],
    ]
    assert [letter.offset for letter in read_all(tmp_path / "logs" / "dead" / "forward")] == [0, 1]


def spans(path: Path, *names: str) -> None:
    """Export a request for each span."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JournalSpanExporter(path)))
    for name in names:
        provider.get_tracer("shop").start_span(name).end()
    provider.shutdown()


def names(body: bytes) -> list[str]:
    """The names of the spans of a request."""
    found = ExportTraceServiceRequest.FromString(body).resource_spans
    return [span.name for resource in found for scope in resource.scope_spans for span in scope.spans]


def test_each_signal_is_forwarded_as_its_own_request(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "telemetry"
    spans(path, "order", "payment")
    meters = MeterProvider([PeriodicExportingMetricReader(JournalMetricExporter(path), export_interval_millis=1e9)])
    meters.get_meter("shop").create_counter("orders").add(3)
    meters.shutdown()
    logs = LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(JournalLogExporter(path)))
    logs.get_logger("shop").emit(body="sold out")
    logs.shutdown()
    assert [message.key for message in read_all(path)] == [b"traces", b"traces", b"metrics", b"logs"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s%3Decret,tenant=shop")
    assert Forwarder(path, f"http://{receiver.address}").run_once() == 4
    paths, headers, (traces, metrics, records) = zip(*receiver.requests, strict=True)
    assert paths == ("/v1/traces", "/v1/metrics", "/v1/logs")
    assert {each["api-key"] for each in headers} == {"s=ecret"}
    assert names(traces) == ["order", "payment"]
    metric = ExportMetricsServiceRequest.FromString(metrics).resource_metrics[0].scope_metrics[0].metrics[0]
    assert (metric.name, metric.sum.data_points[0].as_int) == ("orders", 3)
    log = ExportLogsServiceRequest.FromString(records).resource_logs[0].scope_logs[0].log_records[0]
    assert log.body.string_value == "sold out"
    assert Forwarder(path, f"http://{receiver.address}").run_once() == 0


def test_what_the_collector_refuses_is_a_dead_letter_and_the_rest_is_sent(tmp_path: Path, receiver: Receiver) -> None:
    spans(tmp_path / "t", "a", "b", "c")
    with sej.Writer(tmp_path / "t") as writer:
        writer.append(b"x", b"orders")
    receiver.statuses = [400, 204, 400, 204]  # together, and each alone
    forwarder = Forwarder(tmp_path / "t", f"http://{receiver.address}")
    assert (forwarder.run_once(), forwarder.dead) == (4, 2)
    assert [names(body) for *_, body in receiver.requests] == [["a"], ["c"]]
    assert [letter.key for letter in read_all(tmp_path / "t" / "dead" / "forward")] == [b"traces", b"orders"]


def test_an_exporter_that_cannot_append_reports_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    exporter = JournalSpanExporter(tmp_path / "file")
    assert exporter.export([]) is SpanExportResult.FAILURE
    assert "traces of OpenTelemetry were not kept" in caplog.text
    (tmp_path / "file").unlink()
    assert exporter.export([]) is SpanExportResult.SUCCESS
    exporter.shutdown()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        *((url, "OTLP over gRPC is not supported") for url in ("otlp://host:4317", "localhost:4318", "http://")),
        (
            "loki+http://host?job=shop&my-label=a",
            "a label of Loki must have letters, digits and _ only, got 'my-label'",
        ),
        ("loki+https://user:secret@host", "no password; set SEJ_FORWARD_HEADERS to authorization=Basic%20..."),
    ],
)
def test_an_url_is_refused_and_its_password_not_shown(tmp_path: Path, url: str, text: str) -> None:
    done = command("forward", tmp_path, url)
    assert (done.returncode, text in done.stderr.decode(), b"secret" in done.stderr) == (2, True, False)


def test_a_request_to_a_program_has_whole_messages(tmp_path: Path, receiver: Receiver) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append(b"\xff", "é".encode(), type=7, timestamp=sej.NO_TIMESTAMP)
    Forwarder(tmp_path / "j", f"post+http://{receiver.address}/orders?token=a+b").run_once()
    path, headers, body = receiver.requests[0]
    assert (path, headers["content-type"]) == ("/orders", "application/x-ndjson")
    assert json.loads(body) == {"offset": 0, "timestamp_ns": None, "type": 7, "key": "é", "value_b64": "/w=="}


@pytest.mark.parametrize(("kind", "status"), [("post+", 302), ("post+", 401), ("post+", 403), ("", 404)])
def test_a_wrong_setting_is_an_error_and_the_messages_stay(
    tmp_path: Path, receiver: Receiver, kind: str, status: int
) -> None:
    """A redirect is one: urllib would follow it without the messages, and the answer would count."""
    with sej.Writer(tmp_path / "j") as writer:
        writer.append(b"a", b"traces", timestamp=1)
    receiver.statuses = [status]
    url = f"{kind}http://{receiver.address}/orders"
    done = command("forward", "--once", tmp_path / "j", url)
    variable = "SEJ_FORWARD_HEADERS" if kind else "OTEL_EXPORTER_OTLP_HEADERS"
    assert done.returncode == 1
    assert re.search(rf"answers {status} .*; check the URL, and {variable}", done.stderr.decode())
    assert Forwarder(tmp_path / "j", url).run_once() == 1
    assert len(receiver.requests) == 1


def test_the_memory_does_not_grow_with_the_journal(tmp_path: Path, receiver: Receiver) -> None:
    peaks = []
    for name, count in (("warm", 1), ("short", 8), ("long", 64)):
        with sej.Writer(tmp_path / name) as writer:
            for _ in range(count):
                writer.append(b"x" * (1 << 20))
        forwarder = Forwarder(tmp_path / name, f"post+http://{receiver.address}")
        receiver.statuses = [201] * count
        tracemalloc.start()
        try:
            assert forwarder.run_once() == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1], peaks


MODULES = ("http.server", "sej.cli.app", "sej.cli.worker", "sej.contrib.forward", "tests.contrib.receivers")


def start(*words: object) -> Piped:
    return forkserver(*MODULES).pipe(["tests.contrib.receivers", *map(str, words)])


@pytest.mark.parametrize("kind", ["loki", "post"])
def test_kills_of_the_forwarder_and_of_the_receiver_lose_nothing(kind: str, tmp_path: Path, port: int) -> None:
    """A Loki was not to be had: :mod:`tests.contrib.receivers` refuses what its documentation does not allow."""
    dice, journal, file = random.Random(7), tmp_path / "j", tmp_path / "taken"
    values = [f"{number} " + "x" * (dice.random() < 0.1) * (256 << 10) for number in range(400)]
    with sej.Writer(journal) as writer:
        writer.append_many([value.encode() for value in values], timestamp=list(range(len(values))))
    good, bad = ([value for value in values if (len(value) < 1000) is is_good] for is_good in (True, False))
    programs = {
        "receiver": ("receive", kind, port, file),
        "forwarder": ("forward", "--batch-bytes", "300K", journal, f"{kind}+http://127.0.0.1:{port}"),
    }
    running = {name: start(*words) for name, words in programs.items()}

    def taken() -> list[str]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def dead() -> list[str]:
        try:
            return [letter.value.decode() for letter in read_all(journal / "dead" / "forward")]
        except sej.JournalNotFoundError:
            return []

    def has(count: int) -> bool:
        return len({*taken(), *dead()}) > count

    kept = 0
    try:
        for kill in range(16):
            until(partial(has, dice.randrange(kill * 20, kill * 20 + 20)))
            name = dice.choice(list(programs))
            running[name].kill()
            running[name].communicate()
            last, kept = kept, sej.read_offset(journal, "forward") or 0
            assert last <= kept
            assert {*values[:kept]} <= {*taken(), *dead()}, "what is acknowledged was taken, or is a dead letter"
            running[name] = start(*programs[name])
        until(lambda: sej.read_offset(journal, "forward") == len(values))
    finally:
        for program in running.values():
            program.kill()
            program.communicate()
    assert list(dict.fromkeys(taken())) == good
    assert list(dict.fromkeys(dead())) == bad
    assert len(dead()) <= len(bad) + 16, "a kill repeats at most the letter whose offset was not kept"
