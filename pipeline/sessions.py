"""A Spark session for journals: two settings that matter more than the reader, and the sources.

Spark's own worker daemon collects garbage after every task, for about 27 ms, and its loopback sockets stall for about
40 ms in each task. :func:`spark_conf` uses unix sockets instead, and :mod:`pipeline.daemon`, which imports once and
freezes the imported objects. 200 tiny tasks take 1.7 s instead of 6.5 s.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.needs import needed
from sej.checks import TEXT, a, optional, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_java", "register", "session", "spark_conf"]

_NO_JAVA: Final = (
    "Java not found; Spark needs version 17 or newer: set JAVA_HOME, or put java on PATH (Debian:"
    " openjdk-17-jre-headless)"
)


def spark_conf() -> dict[str, str]:
    """Return the settings for a session that the caller builds: ``SparkSession.builder.config(map=spark_conf())``.

    They take effect when a session's first Python worker starts, so set them before ``getOrCreate()``.
    """
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "pipeline.daemon",
        "spark.sql.python.filterPushdown.enabled": "true",
    }


def session(app: str = "sej", *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with :func:`spark_conf` and the sources registered; if one is running, that one.

    Args:
        app: its name in Spark's pages and logs.
        master: ``"local[2]"``, or a cluster's address; None: from the environment, or all cores of this machine.
        conf: further settings; they take precedence over ours.

    Raises:
        RuntimeError: Java was not found.
        ModuleNotFoundError: Spark is not installed.
    """
    require(app=(app, TEXT), master=(master, optional(TEXT)), conf=(conf, optional(a(Mapping))))
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with needed("spark"):
        from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).config(map={**spark_conf(), **_way_for_workers(), **(conf or {})})
    if master is not None:
        builder = builder.master(master)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register the sources in a session: ``sej``, ``textqueue`` and ``kestrel``."""
    from pipeline.formats.kestrel import KestrelSource
    from pipeline.formats.sej import SejSource
    from pipeline.formats.textqueue import TextQueueSource

    for source in (SejSource, TextQueueSource, KestrelSource):
        spark.dataSource.register(source)


def find_java() -> None:
    """Set JAVA_HOME to a Java installed next to the interpreter, if the environment names no other.

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
    """Return the import path for workers, which import this package too, also from a checkout that is not installed.

    It is set for the workers only: in this process's environment every program that it starts would inherit it.
    """
    here = str(Path(__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here in (*known, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"spark.executorEnv.PYTHONPATH": os.pathsep.join([*known, here])}
