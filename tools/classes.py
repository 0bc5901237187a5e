"""Archive the classes that Spark loads in `.venv/spark.jsa`, so that the JVMs of the tests start in half of the time.

It is a dynamic archive of class data sharing (JEP 350). A JVM with another class path, or another Java, ignores it.
"""

import json
import os
import subprocess
from pathlib import Path

from tests.quick_spark import CONF, SHORT_LIFE, archive

PROGRAM = """
import json, pathlib, sys, tempfile
import sej, pipeline

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    with sej.Writer(path / "journal") as writer:
        writer.append_many([b"%d" % number for number in range(100)])
    spark = pipeline.session(master="local[2]", conf=json.loads(sys.argv[1]))
    frame = spark.read.format("sej").load(str(path / "journal"))
    frame.selectExpr("key", "length(value) AS size").groupBy("size").count().write.parquet(str(path / "sizes"))
    spark.read.parquet(str(path / "sizes")).orderBy("size").collect()
    stream = spark.readStream.format("sej").load(str(path / "journal"))
    writer = stream.writeStream.format("sej").option("checkpointLocation", str(path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(path / "copy")).awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive when it ends
"""


def make(venv: Path, python: Path, home: Path) -> bool:
    """Make the archive with a Java; if that is impossible, remove the old one and return False."""
    target, fresh = archive(venv), venv / "spark.jsa.new"
    fresh.unlink(missing_ok=True)
    options = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable"
    environment = {**os.environ, "JAVA_HOME": str(home), "SPARK_SUBMIT_OPTS": options}
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(python)
    try:
        subprocess.run(
            [python, "-c", PROGRAM, json.dumps(CONF)], env=environment, capture_output=True, timeout=300, check=True
        )
        fresh.replace(target)
    except (OSError, subprocess.SubprocessError):
        target.unlink(missing_ok=True)
        fresh.unlink(missing_ok=True)
        return False
    return True
