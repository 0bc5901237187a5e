"""The process that Spark forks its Python workers from: ours imports first and then freezes what it imported.

Spark starts it as ``python -m pipeline.daemon`` where ``spark.python.daemon.module`` says so. It relies on Spark's own
daemon for everything but the imports: a worker collects garbage after every task, and objects that were frozen before
the fork are not walked again. And where Spark has enough rows (``limit``, ``show``) and hangs up on a worker, that is
no news: Spark's own daemon prints a traceback each time.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
from contextlib import suppress
from typing import Final

__all__ = ["main"]

_FIRST: Final = (
    "numpy",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pipeline.reading.task",
    "pipeline.formats.sej",
)


def main() -> None:
    """Import, freeze, serve."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that numpy starts would not survive the fork
    for name in _FIRST:
        with suppress(ImportError):  # what is missing shows where it is needed, with its own words
            importlib.import_module(name)
    from pyspark import daemon

    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1

    daemon.worker = worker
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
