"""The metrics of a server for Prometheus; computed from the counts at each scrape.

Needs prometheus_client, which is optional: ``serve_metrics(server, 9100)``, or :func:`register` in a registry of the
caller's. Lag and bytes of each journal are read from the disk at each scrape; with many journals, scrape rarely or
leave them out (``journals=False``) and read :func:`hub.stats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from hub.naming import source_path
from hub.overview import stats
from hub.store import LATENCY_BOUNDS_S
from hub.wire.status import REASONS
from sej.cli.shared.readers import queues_of
from sej.system.disk import OS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from hub.wire.server import Server

__all__ = ["register", "serve_metrics"]


class _Collector:
    """Collects the counts."""

    def __init__(self, server: Server, journals: bool) -> None:
        self._server = server
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its value now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        root, counts = self._server.root, self._server.counts()
        for name, text, value in (
            ("sej_hub_puts", "Accepted batches.", counts.puts),
            ("sej_hub_messages", "New messages in them.", counts.messages),
            ("sej_hub_bytes", "The bytes of new messages, as stored in the journals.", counts.bytes),
            ("sej_hub_resent_messages", "Messages that were sent again and were the same.", counts.resent),
            ("sej_hub_unseen_messages", "Messages below the hub's first offset, accepted unchecked.", counts.unseen),
            ("sej_hub_stalled", "Readers that were disconnected because others waited.", counts.stalled),
        ):
            yield CounterMetricFamily(name, text, value=value)
        refusals = CounterMetricFamily("sej_hub_refusals", "Calls that were refused, by reason.", labels=["reason"])
        for reason, count in sorted((dict.fromkeys(REASONS, 0) | dict(counts.refusals)).items()):
            refusals.add_metric([reason], count)
        yield refusals
        yield _latency(HistogramMetricFamily, counts.latency_buckets, counts.latency_s)
        for name, text, number in (
            ("sej_hub_open_writers", "Open writers.", counts.open_writers),
            ("sej_hub_streams", "Reads in progress.", counts.streams),
            ("sej_hub_streams_waiting", "Reads that wait for their turn.", counts.streams_waiting),
            ("sej_hub_followers", "Readers that follow a journal.", counts.followers),
            ("sej_hub_copiers", "Copying clients.", counts.copiers),
            ("sej_hub_reader_leases", "Journals whose named reader a program elsewhere has.", counts.reader_leases),
            ("sej_hub_answer_bytes", "Memory used by the answers to readers.", counts.answer_bytes),
            ("sej_hub_answer_peak_bytes", "The most memory that answers to readers used.", counts.answer_peak_bytes),
            ("sej_hub_answers_waiting", "Readers that wait for memory.", counts.answers_waiting),
            ("sej_hub_disk_free_bytes", "Free bytes of the root's disk.", OS.free_bytes(root)),
        ):
            yield GaugeMetricFamily(name, text, value=number)
        for time in self._server.certificate_times[1:]:
            text = "When the server's certificate expires, since the epoch."
            yield GaugeMetricFamily("sej_hub_certificate_expires_seconds", text, value=time.timestamp())
        if self._journals:
            yield from _by_journal(GaugeMetricFamily, root)


def _latency(family: Any, buckets: Iterable[int], seconds: float) -> Metric:
    total, pairs = 0, []
    for bound, count in zip([*map(str, LATENCY_BOUNDS_S), "+Inf"], buckets, strict=True):
        total += count
        pairs.append((bound, float(total)))
    text = "How long a batch took, including the sync."
    found: Metric = family("sej_hub_put_seconds", text, buckets=pairs, sum_value=seconds)
    return found


_BY_JOURNAL: Final = (
    ("journal_bytes", "Bytes of a journal."),
    ("journal_end_offset", "The offset that is expected next."),
    ("journal_last_arrival_seconds", "When a journal was last written, since the epoch."),
    ("reader_lag_messages", "Messages that a reader has not read.", "reader"),
    ("journal_damaged", "1 if a journal cannot be read."),
    ("queue_items", "Items of a work queue, by state.", "queue", "state"),
    ("queue_oldest_seconds", "Seconds since the oldest ready item was put.", "queue"),
    ("queue_paused", "1 while a queue is paused.", "queue"),
    ("queue_kinds_at_limit", "Kinds of items that wait because of a limit.", "queue"),
    ("schedule_next_timestamp_seconds", "Next time of a schedule that is not paused.", "queue", "schedule"),
)
"""Name, text, and labels in addition to client and journal."""


def _by_journal(family: Any, root: str) -> Iterator[Metric]:
    found = [family(f"sej_hub_{name}", text, labels=["client", "journal", *more]) for name, text, *more in _BY_JOURNAL]
    size, end, arrival, lag, damaged, items, oldest, paused, full, turn = found
    for journal in stats(root):
        where = [journal.source.client, journal.source.journal_dir]
        damaged.add_metric(where, 0 if journal.error is None else 1)
        size.add_metric(where, journal.size)
        end.add_metric(where, journal.end_offset)
        if journal.last_arrival_ns is not None:
            arrival.add_metric(where, journal.last_arrival_ns / 1e9)
        for reader, messages in journal.lag.items():
            lag.add_metric([*where, reader], messages)
        for queue in queues_of(source_path(root, journal.source)):
            oldest.add_metric([*where, queue.name], queue.oldest_s or 0)
            for state in ("ready", "delayed", "leased", "dead"):
                items.add_metric([*where, queue.name, state], queue.summary.stats[state])
            paused.add_metric([*where, queue.name], queue.summary.stats.paused)
            full.add_metric([*where, queue.name], queue.summary.at_limit)
            for one in queue.summary.schedules:
                if one.next_at is not None:
                    turn.add_metric([*where, queue.name, one.name], one.next_at / 1e9)
    yield from found


def register(server: Server, registry: CollectorRegistry | None = None, *, journals: bool = True) -> CollectorRegistry:
    """Register a server's metrics in a registry, by default a new one; return it.

    Raises:
        ImportError: prometheus_client is not installed.
    """
    from prometheus_client import CollectorRegistry

    registry = registry or CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server, journals))
    return registry


def serve_metrics(server: Server, port: int, address: str = "127.0.0.1", *, journals: bool = True) -> int:
    """Serve a server's metrics over HTTP, as long as the process lives; return the port (0: a free one).

    Raises:
        ImportError: prometheus_client is not installed.
    """
    from prometheus_client import start_http_server

    http, _ = start_http_server(port, address, registry=register(server, journals=journals))
    return int(http.server_port)
