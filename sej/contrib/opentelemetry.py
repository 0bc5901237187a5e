"""Exporters of OpenTelemetry that append to a journal; ``sej forward`` sends it to a collector, when there is one.

A message is one request of OTLP, as the exporters over HTTP would send it. Its key is the signal: ``traces``,
``metrics`` or ``logs``. So a program never waits for a collector, and nothing is lost while that is away.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import sej
from sej.contrib.opened import PerProcess
from sej.system.disk import absolute_path
from sej.system.logs import WARNING, record

__all__ = ["JournalLogExporter", "JournalMetricExporter", "JournalSpanExporter"]


class _Exporter:
    """Appends requests to a journal, which each process opens for itself."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Name the journal, which is opened at the first export."""
        super().__init__()
        self._path = absolute_path(path)
        self._writers = PerProcess(lambda path: sej.SharedWriter(path, **options))

    def _append(self, signal: bytes, request: Any) -> bool:
        """Append a request; return whether that succeeded. The logger of this module warns if it did not."""
        try:
            self._writers[self._path].append(request.SerializeToString(), signal)
        except (sej.SejError, OSError) as error:
            record(__name__, WARNING, "%s of OpenTelemetry were not kept: %s", signal.decode(), error)
            self._writers.close()
            return False
        return True

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return True: an export has handed everything to the kernel."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Close the journal."""
        self._writers.close()


class JournalSpanExporter(_Exporter, SpanExporter):
    """Appends spans to a journal. Arguments: its path, and options of :class:`sej.SharedWriter`.

    Example:
        >>> import tempfile, sej
        >>> from opentelemetry.sdk.trace import TracerProvider
        >>> from opentelemetry.sdk.trace.export import BatchSpanProcessor
        >>> path, provider = tempfile.mkdtemp(), TracerProvider()
        >>> provider.add_span_processor(BatchSpanProcessor(JournalSpanExporter(path)))
        >>> with provider.get_tracer("shop").start_as_current_span("order"):
        ...     pass
        >>> provider.shutdown()
        >>> sej.Journal(path).tail(1)[0].key
        b'traces'
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append spans."""
        kept = self._append(b"traces", encode_spans(spans))
        return SpanExportResult.SUCCESS if kept else SpanExportResult.FAILURE


class JournalLogExporter(_Exporter, LogRecordExporter):
    """Appends log records to a journal. Arguments as for :class:`JournalSpanExporter`."""

    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        """Append log records."""
        kept = self._append(b"logs", encode_logs(batch))
        return LogRecordExportResult.SUCCESS if kept else LogRecordExportResult.FAILURE


class JournalMetricExporter(_Exporter, MetricExporter):
    """Appends metrics to a journal. Arguments as for :class:`JournalSpanExporter`."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Append metrics."""
        kept = self._append(b"metrics", encode_metrics(metrics_data))
        return MetricExportResult.SUCCESS if kept else MetricExportResult.FAILURE
