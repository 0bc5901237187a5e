"""Settings with which Spark starts quickly and costs little: tests read a few rows, and none measures it."""

__all__ = ["CONF", "JAVA_OPTIONS"]

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Of every JVM that a test starts: optimizing and verifying Spark's classes would take most of a short life."""

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
