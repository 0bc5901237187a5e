"""Copy journals from one tree to another with a stream, until it is done or killed: `python copying.py FROM TO`."""

import sys
from pathlib import Path

import pipeline
from tests.pipeline.conftest import CONF


def main(source: str, target: str) -> None:
    spark = pipeline.session("copying", master="local[2]", conf={**CONF, "spark.log.level": "OFF"})
    frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 25).option("reader", "copy").load(source)
    writer = frame.writeStream.format("sej").option("prefix", "orders").option("bits", 1)
    writer = writer.option("checkpointLocation", str(Path(target) / ".staging" / "checkpoint"))
    query = writer.trigger(availableNow=True).start(target)
    while not query.awaitTermination(1):
        pass
    print("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
