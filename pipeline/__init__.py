"""SEJ journals, sharded journals, hubs and text queues as tables and streams, with Spark and without.

``pipeline.table("data")`` is a table without Spark, for Arrow, DuckDB, Polars and pandas: see docs/ask.md.

``pipeline.session("app")`` returns a session that has the sources; ``pipeline.register(spark)`` adds them to any other
session. Then ``spark.read.format("sej").load(root)`` works. docs/pipeline.md lists every option. Public names are
imported at their first use: importing ``pipeline`` loads neither Spark nor Arrow. The modules and
folders, in the order in which they are best read::

    columns, values, avro, options, paths  what a table has, and what a reader may pass
    reading                                journals as tables and streams
    tables, schemas                        tables without Spark; sej schema
    formats, writing                       Spark's formats; rows into journals, exactly once
    jobs, cli                              jobs over journals; sej spark
    connection                             reaching a hub
    sessions, daemon, needs, health        sessions, their Python workers, what is missing, what dead jobs left
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.needs import needed as _needed
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from pipeline.options import FormatError as FormatError
    from pipeline.options import OptionError as OptionError
    from pipeline.reading.planning import count as count
    from pipeline.reading.stream import Behind as Behind
    from pipeline.reading.stream import Lag as Lag
    from pipeline.sessions import register as register
    from pipeline.sessions import session as session
    from pipeline.sessions import spark_conf as spark_conf
    from pipeline.tables.stream import Arrived as Arrived
    from pipeline.tables.stream import Stream as Stream
    from pipeline.tables.stream import follow as follow
    from pipeline.tables.table import Table as Table
    from pipeline.tables.table import table as table
else:
    _fetch, __dir__, __all__ = _lazily(__name__, {
        "pipeline.reading.planning": ("count",),
        "pipeline.reading.stream": ("Behind", "Lag"),
        "pipeline.options": ("FormatError", "OptionError"),
        "pipeline.sessions": ("register", "session", "spark_conf"),
        "pipeline.tables.stream": ("Arrived", "Stream", "follow"),
        "pipeline.tables.table": ("Table", "table"),
    })  # fmt: skip

    _TABLES = ("Arrived", "Stream", "Table", "follow", "table")

    def __getattr__(name):
        with _needed("tables" if name in _TABLES else "spark"):
            return _fetch(name)
