"""SEJ journals, shard trees, hubs and text queues as Spark tables and streams.

``pipeline.session("app")`` gives a session that knows the sources; in any other session ``pipeline.register(spark)``
does. Then ``spark.read.format("sej").load(root)``. Every option: docs/pipeline.md. Names are handed on when they are
first used: importing ``pipeline`` loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.counting import count
    from pipeline.lag import Behind, Lag
    from pipeline.options import OptionError
    from pipeline.sessions import register, session, spark_conf

_HOME = {
    "pipeline.counting": ("count",),
    "pipeline.lag": ("Behind", "Lag"),
    "pipeline.options": ("OptionError",),
    "pipeline.sessions": ("register", "session", "spark_conf"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["Behind", "Lag", "OptionError", "count", "register", "session", "spark_conf"]


def __getattr__(name: str) -> object:
    """Fetch a public name from its module at its first use."""
    import importlib

    from pipeline.needs import spark_needed

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    with spark_needed():
        value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
