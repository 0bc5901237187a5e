"""Settings with which Spark starts quickly and costs little: tests read a few rows, and none measures it."""

import sys
from pathlib import Path

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Optimizing and verifying Spark's classes would take most of a short life."""


def archive(venv: Path) -> Path:
    """Where an environment has the archive of Spark's classes that `tools/classes.py` makes."""
    return venv / "spark.jsa"


def _options() -> str:
    """A JVM with another class path, or another Java, ignores the archive; no log: it would report that on stdout."""
    found = archive(Path(sys.prefix))
    return SHORT_LIFE + (f" -XX:SharedArchiveFile={found} -Xlog:disable" * (found.exists() and " " not in str(found)))


JAVA_OPTIONS = _options()
"""Of every JVM that a test starts."""

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}
"""Of a session; benchmarks/spark.py measures with other settings."""

SHARED_CONF = {
    **CONF,
    # By default Spark starts ten programs, chmod and readlink, for each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Of the session that the tests share; the other ones, in programs and on a cluster, have Spark's default."""
