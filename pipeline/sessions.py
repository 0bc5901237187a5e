"""A Spark session that reads journals well: two settings that matter more than the reader, and the sources.

Spark's own worker daemon collects garbage after every task, about 27 ms of it, and its loopback sockets stall about
40 ms a task. :func:`spark_conf` takes unix sockets instead, and :mod:`pipeline.daemon`, which imports once and
freezes what it imported. 200 tiny tasks: 1.7 s instead of 6.5 s.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.needs import spark_needed
from sej.checks import TEXT, a, optional, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_java", "register", "session", "spark_conf"]

_NO_JAVA: Final = (
    "Spark needs Java 17 or newer and none was found: set JAVA_HOME, or put java on PATH"
    " (Debian: openjdk-17-jre-headless)"
)


def spark_conf() -> dict[str, str]:
    """The settings for a session that is built elsewhere: ``SparkSession.builder.config(map=spark_conf())``.

    They count when a session's first Python worker starts, so they belong before ``getOrCreate()``.
    """
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "pipeline.daemon",
        "spark.sql.python.filterPushdown.enabled": "true",
    }


def session(app: str = "sej", *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with :func:`spark_conf` and the sources registered; the running one where there is one.

    Args:
        app: its name in Spark's pages and logs.
        master: ``"local[2]"``, or a cluster's address; None: what the environment says, else all cores here.
        conf: further settings; they win over ours.

    Raises:
        RuntimeError: no Java was found.
        ModuleNotFoundError: Spark is not installed.
    """
    require(app=(app, TEXT), master=(master, optional(TEXT)), conf=(conf, optional(a(Mapping))))
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with spark_needed():
        from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).config(map={**spark_conf(), **_way_for_workers(), **(conf or {})})
    if master is not None:
        builder = builder.master(master)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the sources known to a session: ``sej``, ``textqueue`` and ``kestrel``."""
    from pipeline.formats.kestrel import KestrelSource
    from pipeline.formats.sej import SejSource
    from pipeline.formats.textqueue import TextQueueSource

    for source in (SejSource, TextQueueSource, KestrelSource):
        spark.dataSource.register(source)


def find_java() -> None:
    """Set JAVA_HOME to what a set-up left beside the interpreter, where nothing else names a Java.

    Raises:
        RuntimeError: there is none.
    """
    if os.environ.get("JAVA_HOME"):
        return
    remembered = Path(sys.prefix) / "java-home"
    if remembered.exists() and Path(home := remembered.read_text().strip(), "bin", "java").exists():
        os.environ["JAVA_HOME"] = home
    elif shutil.which("java") is None:
        raise RuntimeError(_NO_JAVA)


def _way_for_workers() -> dict[str, str]:
    """Workers import this package too: from a checkout that is not installed they need to be told where it is.

    Told to them alone: in the environment of this process every program that it starts would inherit it.
    """
    here = str(Path(__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here in (*known, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"spark.executorEnv.PYTHONPATH": os.pathsep.join([*known, here])}
