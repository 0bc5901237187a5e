"""SEJ journals, sharded journals, hubs and text queues as Spark tables and streams.

``pipeline.session("app")`` returns a session that has the sources; ``pipeline.register(spark)`` adds them to any other
session. Then ``spark.read.format("sej").load(root)`` works. docs/pipeline.md lists every option. Public names are
imported at their first use: importing ``pipeline`` loads neither Spark nor Arrow.
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
