"""Copy journals from one tree to another with a stream, until it is killed: `python copying.py FROM TO [HUB]`."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pipeline
from tests.quick_spark import CONF


def copy(spark: SparkSession, source: str, target: str, *, once: bool, hub: str | None = None) -> None:
    """Copy what is there, or what comes too; continues from the checkpoint of an earlier run. hub: its address."""
    limit = 50_000 if once else 400  # small batches, so that a kill comes at any place of one
    frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", limit).option("reader", "copy").load(source)
    writer = frame.writeStream.format("sej").option("prefix", "orders").option("bits", 1)
    writer = writer.option("checkpointLocation", str(Path(target) / ".staging" / "checkpoint"))
    if once:
        writer = writer.trigger(availableNow=True)
    if hub is not None:
        writer = writer.option("hub", hub)
    query = writer.start(target if hub is None else "berlin")
    while not query.awaitTermination(1):
        pass


def main(source: str, target: str, hub: str | None = None) -> None:
    spark = pipeline.session("copying", master="local[2]", conf={**CONF, "spark.log.level": "OFF"})
    copy(spark, source, target, once=False, hub=hub)


if __name__ == "__main__":
    main(*sys.argv[1:])
