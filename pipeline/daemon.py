"""The process that forks Spark's Python workers: it imports modules first and then freezes the imported objects.

Spark starts it as ``python -m pipeline.daemon`` if ``spark.python.daemon.module`` names it. Everything except the
imports is Spark's own daemon. A worker collects garbage after every task, and objects that were frozen before the fork
are not traversed again. If Spark has enough rows (``limit``, ``show``), or its session ends, it closes the socket of a
worker. That is not an error; Spark's own daemon prints a traceback each time. Spark always plans with its own daemon,
so the formats call :func:`end_quietly` in its workers.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
from contextlib import suppress
from types import ModuleType
from typing import Final

_FIRST: Final = (
    "numpy",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pipeline.reading.task",
    "pipeline.formats",
)


def main() -> None:
    """Import, freeze and serve."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that numpy starts would not survive the fork
    for name in _FIRST:
        with suppress(ImportError):  # a missing library raises a clear error at its use
            importlib.import_module(name)
    from pyspark import daemon

    end_quietly(daemon)
    gc.collect()
    gc.freeze()
    daemon.manager()


def end_quietly(daemon: ModuleType) -> None:
    """Let the next tasks of a worker end without a traceback if Spark has closed their socket."""
    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            code: int = work(sock, authenticated)
        except BrokenPipeError:
            return 1
        return code

    daemon.worker = worker  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
