"""Stream a journal into a sharded journal, exactly once. If you run it again, it continues where it stopped."""

import pipeline
import sej


def copy_what_is_new() -> int:
    """Run the stream until no message is new, and return the number of rows in the target."""
    stream = spark.readStream.format("sej").option("maxMessagesPerTrigger", 400).load("orders")
    target = stream.writeStream.format("sej").option("prefix", "orders").option("bits", 2)
    target.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start("by-customer").awaitTermination()
    return pipeline.count("by-customer")


spark = pipeline.session("example")
with sej.Writer("orders") as writer:
    keys = [b"customer %d" % (number % 7) for number in range(1000)]
    writer.append_many([b"order %d" % number for number in range(1000)], keys)
    first = copy_what_is_new()
    writer.append(b"order 1000", b"customer 1")
    second = copy_what_is_new()
spark.stop()
print(first, "and then", second)
assert (first, second) == (1000, 1001)
