"""A Spark session for journals: two settings that matter more than the reader, and the sources.

Spark's own worker daemon collects garbage after every task, for about 27 ms, and its loopback sockets stall for about
40 ms in each task. :func:`spark_conf` uses unix sockets instead, and :mod:`pipeline.daemon`, which imports once and
freezes the imported objects. 200 tiny tasks take 1.7 s instead of 6.5 s.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pipeline.needs import is_connect, needed, why_not_compiled
from sej.checks import instance_of, optional, require
from sej.system.locks import host_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pipeline")
_NOT_THERE: Final = (
    "the executors' Python has no package sej-journals: install its wheel on every node, or send an environment that"
    " has it with spark.archives; see 'On a cluster' in docs/pipeline.md"
)
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Spark sets this environment variable for a session of Spark Connect."""
_REGISTRY: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_TRIES: Final = 5
_SPARK_MIN: Final = (4, 2)
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

    A running session of Spark Connect is returned too. After it was stopped, a new session has a JVM again.

    Args:
        app: its name in Spark's pages and logs.
        master: ``"local[2]"``, or a cluster's address; None: from the environment, or all cores of this machine.
        conf: further settings; they take precedence over ours.

    Raises:
        RuntimeError: Java was not found, or the version of Spark is too old.
        ModuleNotFoundError: Spark is not installed, or a cluster's executors do not have this package.
    """
    require(app=app, master=master, conf=(conf, optional(instance_of(Mapping))))
    with needed("spark"):
        from pyspark.sql import SparkSession

    if (running := _running_connect()) is not None:
        register(running)
        return running
    if "SPARK_REMOTE" not in os.environ and "spark.remote" not in (conf or {}):  # else the server has the JVM
        find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).config(map={**spark_conf(), **_way_for_workers(), **(conf or {})})
    if master is not None:
        builder = builder.master(master)
    spark = _started(builder)
    register(spark)
    if not is_connect(spark) and not str(spark.sparkContext.master).startswith("local"):
        check_executors(spark)
    return spark


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Return the builder's session; after a session of Spark Connect, try again if Spark's program ended immediately.

    Spark forks to run it, and gRPC can end a forked child by a signal before it runs anything.
    """
    from pyspark.errors import PySparkRuntimeError

    tries = _TRIES if "grpc" in sys.modules else 0
    while True:
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED" or not tries:
                raise
            tries -= 1


def _running_connect() -> SparkSession | None:
    """Return the running session of Spark Connect, or None.

    A remote session that was stopped leaves a mark in the environment. With it, Spark would refuse to start a JVM.
    """
    if _CONNECT not in os.environ:
        return None
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    running = ConnectSession.getActiveSession() or ConnectSession._get_default_session()
    if running is None:
        del os.environ[_CONNECT]
    return cast("SparkSession | None", running)


def check_executors(spark: SparkSession) -> None:
    """Check with one small job that the executors have this package; warn if their codec is pure Python.

    :func:`session` calls it for a cluster. It waits until the cluster has an executor.

    Raises:
        ModuleNotFoundError: an executor does not have the package.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    tasks = context.defaultParallelism
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(_probe).collect()
    except (PySparkException, Py4JError) as error:
        if "No module named 'pipeline" not in str(error):
            raise
        raise ModuleNotFoundError(_NOT_THERE) from error
    for host, reason in sorted(set(found)):
        if reason is not None:
            _log.warning("the codec on executor %s is pure Python, which is slow: %s", host, reason)


def _probe(_: Iterable[int]) -> Iterator[tuple[str, str | None]]:
    yield host_name(), why_not_compiled()


def register(spark: SparkSession) -> None:
    """Register the sources in a session: ``sej``, ``textqueue`` and ``kestrel``. Warn if the codec here is pure Python.

    Threads that use Spark for the first time after this find them too.

    Raises:
        RuntimeError: the version of Spark is too old.
    """
    _check_version()
    if (reason := why_not_compiled()) is not None:
        _log.warning("the codec of this program is pure Python, which is slow: %s", reason)
    from pipeline.formats import KestrelSource, SejSource, TextQueueSource

    parallelism = None if is_connect(spark) else _parallelism(spark)
    known = type("SejSource", (SejSource,), {"parallelism": parallelism, "__module__": "__main__"})
    sources = (known, TextQueueSource, KestrelSource)
    if not is_connect(spark):
        _activate(spark)
        log4j = cast("Any", spark._jvm).org.apache.logging.log4j
        # Else this session, and that of each stream, warns for each that replaces what Spark found by itself.
        log4j.core.config.Configurator.setLevel(_REGISTRY, log4j.Level.ERROR)
    for source in sources:
        spark.dataSource.register(source)


def _activate(spark: SparkSession) -> None:
    """Make the session active in this thread and in later ones: Spark's ``write`` finds sources in the active one only.

    Each connection of a Python thread is a Java thread, which inherits the active session of the thread that accepts
    connections. So that thread is made to set it, by a listener that runs when it has accepted one.
    """
    gateway = cast("Any", spark.sparkContext)._gateway
    java, server = gateway.jvm.java, gateway.java_gateway_server
    sessions = java.lang.Class.forName(spark._jsparkSession.getClass().getName())
    arguments = gateway.new_array(gateway.jvm.Object, 1)
    arguments[0] = spark._jsparkSession
    activate = java.beans.Statement(sessions, "setActiveSession", arguments)
    activate.execute()
    kind = java.lang.Class.forName("py4j.GatewayServerListener")
    listener = java.beans.EventHandler.create(kind, activate, "execute", None, "connectionStarted")
    server.addListener(listener)
    for _ in range(2):  # the second is accepted after the listener has heard of the first
        connecting = threading.Thread(target=gateway.jvm.System.nanoTime)
        connecting.start()
        connecting.join()
    server.removeListener(listener)


def _check_version() -> None:
    from pyspark import __version__

    if tuple(int(part) for part in __version__.split(".")[:2]) < _SPARK_MIN:
        raise RuntimeError(
            f"journals in Spark need Spark 4.2 or newer, and this is PySpark {__version__}: pip install 'pyspark>=4.2'"
        )


def _parallelism(spark: SparkSession) -> int:
    """Return how many tasks the cluster will run at the same time, also before its executors have registered."""
    context = spark.sparkContext
    conf = context.getConf()
    if conf.contains("spark.default.parallelism"):
        return context.defaultParallelism
    executors = int(conf.get("spark.executor.instances", "0")) * int(conf.get("spark.executor.cores", "1"))
    return max(context.defaultParallelism, int(conf.get("spark.cores.max", "0")), executors)


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
