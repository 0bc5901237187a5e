"""OpenTelemetry in a journal, and the forwarder that sends it to a collector, which is away, slow or refuses."""

import random
import threading
from collections.abc import Iterator
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, HTTPServer
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

import sej
from sej.contrib import forward as module
from sej.contrib.forward import Forwarder
from sej.contrib.opentelemetry import JournalLogExporter, JournalMetricExporter, JournalSpanExporter
from tests.cli.command import ENV
from tests.cli.command import sej as command
from tests.forking import Forkserver
from tests.sej.hooks import until
from tests.sej.support import read_all


class Collector:
    """A collector that keeps the names of the spans that it gets; it answers with the codes that a test sets."""

    def __init__(self, port: int = 0) -> None:
        self.codes: list[int] = []
        self.requests: list[tuple[str, bytes, str | None]] = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                code = kept.codes.pop(0) if kept.codes else 200
                if code == 200:
                    kept.requests.append((self.path, data, self.headers["api-key"]))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def names(self) -> list[str]:
        """The names of all spans, in the order in which they came."""
        found = []
        for path, data, _ in self.requests:
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(data)
                scopes = [scope for resource in request.resource_spans for scope in resource.scope_spans]
                found += [span.name for scope in scopes for span in scope.spans]
        return found

    def has(self, count: int) -> bool:
        return len(self.requests) >= count

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", (0.001, 0.01))


def spans(path: Path, *names: str) -> None:
    """Export a request for each span."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JournalSpanExporter(path)))
    for name in names:
        provider.get_tracer("shop").start_span(name).end()
    provider.shutdown()


def test_each_signal_is_forwarded_as_its_own_request(tmp_path: Path, collector: Collector, monkeypatch: Any) -> None:
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
    assert Forwarder(path, collector.url).run_once() == 4
    assert [request[0] for request in collector.requests] == ["/v1/traces", "/v1/metrics", "/v1/logs"]
    assert {request[2] for request in collector.requests} == {"s=ecret"}
    assert collector.names() == ["order", "payment"]
    metric = ExportMetricsServiceRequest.FromString(collector.requests[1][1]).resource_metrics[0].scope_metrics[0]
    assert (metric.metrics[0].name, metric.metrics[0].sum.data_points[0].as_int) == ("orders", 3)
    log = ExportLogsServiceRequest.FromString(collector.requests[2][1]).resource_logs[0].scope_logs[0]
    assert log.log_records[0].body.string_value == "sold out"
    assert Forwarder(path, collector.url).run_once() == 0


def test_a_collector_that_is_away_or_busy_gets_everything_later(tmp_path: Path, port: int) -> None:
    names = [f"span {number}" for number in range(50)]
    spans(tmp_path / "t", *names[:20])
    stop = threading.Event()
    forwarder = Forwarder(tmp_path / "t", f"http://127.0.0.1:{port}", batch_bytes=1000)
    thread = threading.Thread(target=forwarder.run, args=(stop,))
    thread.start()
    spans(tmp_path / "t", *names[20:])
    collector = Collector(port)
    try:
        collector.codes = [503, 429, 500, 408]
        until(lambda: len(collector.names()) == 50)
        assert collector.names() == names
        assert len(collector.requests) < 50
    finally:
        stop.set()
        thread.join()
        collector.close()


def test_what_the_collector_refuses_is_a_dead_letter_and_the_rest_is_sent(tmp_path: Path, collector: Collector) -> None:
    spans(tmp_path / "t", "a", "b", "c")
    with sej.Writer(tmp_path / "t") as writer:
        writer.append(b"x", b"orders")
    collector.codes = [400, 200, 400, 200]  # together, and each alone
    forwarder = Forwarder(tmp_path / "t", collector.url)
    assert (forwarder.run_once(), forwarder.dead) == (4, 2)
    assert collector.names() == ["a", "c"]
    assert [letter.key for letter in read_all(tmp_path / "t" / "dead" / "forward")] == [b"traces", b"orders"]


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_wrong_setting_is_an_error_and_the_messages_stay(tmp_path: Path, collector: Collector, code: int) -> None:
    spans(tmp_path / "t", "a")
    collector.codes = [code]
    done = command("forward", "--once", tmp_path / "t", collector.url)
    assert (done.returncode, b"check the URL, and OTEL_EXPORTER_OTLP_HEADERS" in done.stderr) == (1, True)
    assert command("forward", "--once", tmp_path / "t", collector.url).stdout == b"1 message\n"
    assert collector.names() == ["a"]


def test_an_exporter_that_cannot_append_reports_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    exporter = JournalSpanExporter(tmp_path / "file")
    assert exporter.export([]) is SpanExportResult.FAILURE
    assert "traces of OpenTelemetry were not kept" in caplog.text
    (tmp_path / "file").unlink()
    assert exporter.export([]) is SpanExportResult.SUCCESS
    exporter.shutdown()


def test_an_url_that_is_not_http_is_refused(tmp_path: Path) -> None:
    for url in ("otlp://host:4317", "localhost:4318", "http://"):
        with pytest.raises(ValueError, match="OTLP over gRPC is not supported"):
            Forwarder(tmp_path, url)
    assert command("forward", tmp_path, "grpc://host:4317").returncode == 2


@cache
def forks() -> Forkserver:
    return Forkserver("sej.cli.app", "sej.cli.relay", "sej.contrib.forward", env=ENV)


def test_a_forwarder_that_is_killed_loses_nothing(tmp_path: Path, collector: Collector) -> None:
    dice, names = random.Random(7), [f"span {number}" for number in range(300)]
    spans(tmp_path / "t", *names)
    for _ in range(8):
        enough = min(len(collector.requests) + dice.randrange(1, 10), 290)
        with forks().pipe(["sej", "forward", "--batch-bytes", "100", str(tmp_path / "t"), collector.url]) as program:
            until(partial(collector.has, enough))
            program.kill()
    Forwarder(tmp_path / "t", collector.url).run_once()
    found = collector.names()
    assert list(dict.fromkeys(found)) == names
    assert len(found) <= len(names) + 8, "each kill repeats at most the request whose answer it had not kept"
