"""Headers of items: kept with the item until it ends, never in the message, and the trace context in them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider

import sej
from sej.queue.interface.values import MAX_HEADERS_BYTES
from sej.queue.journal_queue import JournalQueue
from sej.queue.log.format import HEADERS, RECORD_SIZE, in_parts, packed_headers
from tests.crash.disk import CrashDisk
from tests.queue.support import FakeClock, crashes, dying, opened, take

TEXTS = {"a": "b", "größe": "ü" * 50, "empty": ""}
SPAN = trace.SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, trace.TraceFlags(1))
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path / "q", clock, max_attempts=2) as queue:
        yield queue


def segments(path: Path) -> list[bytes]:
    return [segment.read_bytes() for segment in sorted((path / "jnl").iterdir())]


class TestKept:
    def test_an_item_has_them_and_the_journal_does_not(self, tmp_path: Path) -> None:
        when = FakeClock()
        for name, headers in (("with", TEXTS), ("without", None)):
            with opened(tmp_path / name, when) as q:
                q.put(b"value", b"key", headers=headers)
                assert take(q).headers == (headers or {})
        stamp = slice(8, 16)
        (one,), (other,) = segments(tmp_path / "with"), segments(tmp_path / "without")
        assert (len(one), one[: stamp.start]) == (len(other), other[: stamp.start])
        (found,) = sej.Scanner(tmp_path / "with", timeout=0)
        assert (found.key, found.value) == (b"key", b"value")

    def test_through_retries_delays_a_compaction_a_reboot_dead_letters_and_a_redrive(
        self, q: JournalQueue, clock: FakeClock
    ) -> None:
        q.put(b"plain")
        q.put(b"job", headers=TEXTS, delay_s=5, priority=1)
        take(q).done()
        clock.move(6)
        item = take(q)
        assert item.headers == TEXTS
        item.retry(30)
        q._core.locked(q._core.log.compact)
        clock.reboot()
        clock.move(60)
        with opened(q.path, clock, max_attempts=2) as again:
            item = take(again)
            assert (item.headers, item.attempts) == (TEXTS, 2)
            item.retry()
            assert again.items("dead")[0].headers == TEXTS
            assert again._core.log.state.headers == {}
            assert again.redrive() == 1
            item = take(again)
            assert (item.headers, item.attempts) == (TEXTS, 1)
            item.fail()
            number = again.requeue(item.message.offset)
            assert [(found.offset, found.headers) for found in again.items()] == [(number, TEXTS)]
            assert [found.headers for found in again.peek(2)] == [TEXTS]
            take(again).done()
            assert again._core.log.state.headers == {}

    def test_another_message_does_not_get_them(self, tmp_path: Path, clock: FakeClock) -> None:
        """The process dies between the record and the message, and another message gets the offset."""
        with opened(tmp_path, clock) as q:
            q.put(b"first")
        with dying(tmp_path, clock) as q:
            q.put(b"lost", headers=TEXTS)
        with opened(tmp_path, clock) as q:
            q.put(b"second")
            assert [(item.value, item.headers) for item in q.get_many(9, timeout=0)] == [
                (b"first", {}),
                (b"second", {}),
            ]

    def test_power_loss(self, clock: FakeClock) -> None:
        disk = CrashDisk()
        q = opened("/q", clock, disk, durability="disk", compact_bytes=100)
        since = disk.settle()
        for n in range(3):
            q.put(b"%d" % n, headers={"n": str(n)})
            disk.mark(n)
        take(q).retry(0)
        for crash in crashes(disk, q, clock, since):
            with opened("/q", clock, crash.disk) as q:
                found = {item.value: item.headers for item in q.get_many(9, timeout=0)}
            assert set(found) >= {b"%d" % n for n in crash.marks}, crash.step
            assert all(headers == {"n": value.decode()} for value, headers in found.items()), crash.step


class TestBytes:
    def test_the_bytes_of_the_log(self) -> None:
        text = packed_headers({"a": "b"}, 1, 2)
        assert text.hex() == "0000000000000001" + "00000002" + "00000009" + b'{"a":"b"}'.hex()
        _, second = in_parts(HEADERS, 7, text)
        assert second.hex() == "1a000001" + "7d000000" + f"{7:016x}" + "0" * 40 + "01e87448"

    def test_headers_with_a_part_missing_are_ignored(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"1", headers=TEXTS)
            path = Path(q._core.log.path)
        data = path.read_bytes()
        rows = [data[at : at + RECORD_SIZE] for at in range(0, len(data), RECORD_SIZE)]
        there = [index for index, row in enumerate(rows) if row[0] == HEADERS.number]
        assert len(there) > 2
        path.write_bytes(b"".join(row for index, row in enumerate(rows) if index != there[1]))
        with opened(tmp_path, clock) as q:
            assert take(q).headers == {}

    def test_a_damaged_dead_letter_raises(self, tmp_path: Path) -> None:
        head = {"source": "s", "reader": "r", "offset": 0, "attempts": 1, "reason": ""}
        with sej.Writer(tmp_path) as w:
            w.append(json.dumps({**head, "headers": {"a": 1}}).encode() + b"\nvalue")
        with pytest.raises(sej.CorruptionError, match="not a dead letter"):
            list(sej.dead_letters(tmp_path))


class TestArguments:
    @pytest.mark.parametrize(
        ("headers", "error", "text"),
        [
            ([("a", "b")], TypeError, "headers must be"),
            ({1: "b"}, TypeError, "a name in headers must be"),
            ({"a": b"b"}, TypeError, r"headers\['a'\] must be"),
            ({"": "b"}, ValueError, "must not be empty"),
            ({"a": "x" * MAX_HEADERS_BYTES}, sej.InvalidMessageError, "at most 8192 bytes as JSON, got 8200; put more"),
            ({"a": "\ud800"}, sej.InvalidMessageError, "valid Unicode"),
        ],
    )
    def test_what_cannot_be_kept_is_refused(
        self, q: JournalQueue, headers: Any, error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error, match=text):
            q.put(b"1", headers=headers)
        assert q.stats().ready == 0

    def test_the_largest_ones(self, q: JournalQueue) -> None:
        texts = {"a": "x" * (MAX_HEADERS_BYTES - len('{"a":""}'))}
        q.put(b"1", headers=texts)
        item = take(q)
        assert item.headers == texts
        item.headers.clear()
        assert item.headers == texts

    def test_no_headers_need_no_record(self, q: JournalQueue) -> None:
        before = Path(q._core.log.path).stat().st_size
        q.put(b"1", headers={})
        assert Path(q._core.log.path).stat().st_size == before


class TestTraceContext:
    def test_a_worker_runs_its_handler_under_the_context_of_the_put(self, q: JournalQueue) -> None:
        tracer = TracerProvider().get_tracer("test")
        with tracer.start_as_current_span("put") as span:
            q.put(b"1")
            q.put_many([b"2", b"3"], headers={"a": "b"})
        q.put(b"4")
        seen: list[tuple[bytes, int, Mapping[str, str]]] = []

        def handle(item: sej.Item) -> None:
            seen.append((item.value, trace.get_current_span().get_span_context().trace_id, item.headers))

        assert sej.work(q, handle, until_empty=True) == 4
        number = span.get_span_context().trace_id
        assert [row[:2] for row in seen] == [(b"1", number), (b"2", number), (b"3", number), (b"4", 0)]
        assert [sorted(row[2]) for row in seen] == [["traceparent"], ["a", "traceparent"], ["a", "traceparent"], []]
        assert trace.get_current_span().get_span_context().trace_id == 0

    def test_the_header_is_that_of_the_standard(self, q: JournalQueue) -> None:
        with trace.use_span(trace.NonRecordingSpan(SPAN)):
            q.put(b"1")
            q.put(b"2", headers={"traceparent": "mine"})
        assert [item.headers for item in q.items()] == [{"traceparent": TRACEPARENT}, {"traceparent": "mine"}]

    def test_baggage_that_does_not_fit_is_left_out(self, q: JournalQueue) -> None:
        there = baggage.set_baggage("large", "x" * 5000, trace.set_span_in_context(trace.NonRecordingSpan(SPAN)))
        token = context.attach(there)
        try:
            q.put(b"1", headers={"mine": "y" * 4000})
            q.put(b"2", headers={"mine": "y" * (MAX_HEADERS_BYTES - len('{"mine":""}'))})
        finally:
            context.detach(token)
        assert [sorted(item.headers) for item in q.items()] == [["mine", "traceparent"], ["mine"]]

    def test_a_failed_handler_leaves_no_context(self, q: JournalQueue) -> None:
        q.put(b"1", headers={"traceparent": TRACEPARENT})

        stop = threading.Event()

        def handle(_: sej.Item) -> None:
            stop.set()
            assert trace.get_current_span().get_span_context().trace_id == SPAN.trace_id
            raise RuntimeError("by purpose")

        assert sej.work(q, handle, stop=stop) == 0
        assert not trace.get_current_span().get_span_context().is_valid
        assert q.stats().delayed == 1

    def test_a_program_without_it_does_not_load_it(self, tmp_path: Path) -> None:
        program = (
            "import sys, sej\n"
            "with sej.open_queue(sys.argv[1]) as q:\n"
            "    q.put(b'1')\n"
            "    q.put(b'2', headers={'a': 'b'})\n"
            "    assert sej.work(q, lambda item: None, until_empty=True) == 2\n"
            "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
