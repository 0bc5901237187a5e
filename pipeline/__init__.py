"""SEJ journals, shard trees, hubs and text queues as Spark tables and streams.

``pipeline.session("app")`` gives a session that knows the sources; in any other session ``pipeline.register(spark)``
does. Then ``spark.read.format("sej").load(root)``. Every option: docs/pipeline.md. Names are handed on when they are
first used: importing ``pipeline`` loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.needs import spark_needed as _spark_needed
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from pipeline.options import OptionError
    from pipeline.reading.counting import count
    from pipeline.reading.lag import Behind, Lag
    from pipeline.sessions import register, session, spark_conf
else:
    _fetch, __dir__ = _lazily(__name__, {
        "pipeline.reading.counting": ("count",),
        "pipeline.reading.lag": ("Behind", "Lag"),
        "pipeline.options": ("OptionError",),
        "pipeline.sessions": ("register", "session", "spark_conf"),
    })  # fmt: skip

    def __getattr__(name):
        with _spark_needed():
            return _fetch(name)


__all__ = ["Behind", "Lag", "OptionError", "count", "register", "session", "spark_conf"]
