"""Copy journals from one tree to another with a stream: `python copying.py FROM TO once|follow`.

Once: until nothing is left, then it prints `done`. Follow: until it is killed.
"""

import sys
from pathlib import Path

import pipeline
from tests.pipeline.conftest import CONF

ONCE, FOLLOW = "once", "follow"


def main(source: str, target: str, how: str) -> None:
    spark = pipeline.session("copying", master="local[2]", conf={**CONF, "spark.log.level": "OFF"})
    frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 400).option("reader", "copy").load(source)
    writer = frame.writeStream.format("sej").option("prefix", "orders").option("bits", 1)
    writer = writer.option("checkpointLocation", str(Path(target) / ".staging" / "checkpoint"))
    if how == ONCE:
        writer = writer.trigger(availableNow=True)
    query = writer.start(target)
    while not query.awaitTermination(1):
        pass
    print("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
