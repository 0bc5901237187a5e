"""An afternoon with journals in a notebook: the cells of a user who knows PySpark and has read docs/pipeline.md."""
# mypy: ignore-errors

# %% A session, and orders of three days into a sharded journal
import json
import tempfile
from pathlib import Path

from pyspark.sql import functions as f

import pipeline
from pipeline import jobs

spark = pipeline.session("notebook", master="local[2]")
here = Path(tempfile.mkdtemp(prefix="notebook-"))

orders = spark.range(3 * 24 * 60).select(
    f.concat(f.lit("customer-"), f.col("id") % 11).alias("key"),
    f.to_json(f.struct(f.col("id").alias("order"), (f.col("id") % 97).alias("cents"))).alias("value"),
    f.timestamp_seconds(1_700_000_000 + f.col("id") * 60).alias("timestamp"),
)
orders.write.format("sej").option("prefix", "orders").option("bits", 3).mode("append").save(f"{here}/data")

# %% What is there?
table = spark.read.format("sej").load(f"{here}/data")
table.printSchema()
table.orderBy("shard", "offset").show(3)
assert table.count() == pipeline.count(f"{here}/data") == 4_320

# %% Revenue by customer and day; keys and values are bytes
parsed = table.select(
    f.decode("key", "UTF-8").alias("customer"),
    f.from_json(f.decode("value", "UTF-8"), "order BIGINT, cents BIGINT").alias("order"),
    "timestamp",
    "shard",
)
revenue = parsed.groupBy("customer", f.to_date("timestamp").alias("day")).agg(f.sum("order.cents").alias("cents"))
assert revenue.select(f.sum("cents")).first()[0] == sum(number % 97 for number in range(4_320))

# %% One hour of one shard: the index finds the beginning, the other shards are not opened
hour = table.where("shard = 3 AND timestamp >= '2023-11-15 00:00:00' AND timestamp < '2023-11-15 01:00:00'")
assert hour.count() == table.where("shard = 3").where(f.date_trunc("hour", "timestamp") == "2023-11-15").count()
day = spark.read.format("sej").option("startingTimestamp", "2023-11-16T00:00:00Z")
day = day.option("endingTimestamp", "2023-11-17T00:00:00Z").load(f"{here}/data")
assert day.count() == 24 * 60

# %% SQL
spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING sej OPTIONS (path '{here}/data', startingOffsets 'earliest')")
assert spark.sql("SELECT count(DISTINCT key) AS customers FROM orders").first().customers == 11

# %% Go on from known offsets, as from Kafka
ends = {
    f"orders.3.{row.shard:03x}": row.end - 10
    for row in table.groupBy("shard").agg(f.max("offset").alias("end")).collect()
}
latest = spark.read.format("sej").option("startingOffsets", json.dumps(ends)).load(f"{here}/data")

assert latest.count() == 11 * len(ends)

# %% A stream: orders of a day, counted in windows
stream = spark.readStream.format("sej").option("maxMessagesPerTrigger", 3_000).load(f"{here}/data")
days = stream.withWatermark("timestamp", "1 day").groupBy(f.window("timestamp", "1 day")).count()
query = days.writeStream.format("memory").queryName("days").outputMode("complete").trigger(availableNow=True).start()
query.awaitTermination()
assert spark.table("days").agg(f.sum("count")).first()[0] == 4_320


# %% foreachBatch into journals: a batch that comes again is dropped, by its number
def large_orders(batch, number):
    large = batch.where("CAST(get_json_object(CAST(value AS STRING), '$.cents') AS INT) > 90").select("key", "value")
    writer = large.write.format("sej").option("txnAppId", "large-orders").option("txnVersion", number)
    writer.mode("append").save(f"{here}/large")


query = stream.writeStream.foreachBatch(large_orders).option("checkpointLocation", f"{here}/large-checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
expected = sum(number % 97 > 90 for number in range(4_320))
assert pipeline.count(f"{here}/large") == expected

# %% Into other shards, exactly once, and its lag
lag = pipeline.Lag(print, metrics=f"{here}/lag.prom")
spark.streams.addListener(lag)
copy = stream.writeStream.format("sej").option("prefix", "orders").option("bits", 1).option("segmentBytes", 1 << 20)
copy.option("checkpointLocation", f"{here}/copy-checkpoint").trigger(availableNow=True).start(
    f"{here}/copy"
).awaitTermination()
spark.streams.removeListener(lag)
assert pipeline.count(f"{here}/copy") == 4_320

# %% Some for people to look at
few = parsed.where("order.cents = 96").select(f.concat_ws(" ", "customer", "order.order").alias("value")).limit(5)
few.write.format("textqueue").mode("append").save(f"{here}/review.tq")
assert spark.read.format("textqueue").load(f"{here}/review.tq").where("status = 'queued'").count() == 5

# %% Jobs
for stat in jobs.stats(spark, f"{here}/data"):
    print(stat.name, stat.messages, stat.rate, stat.top_key, stat.top_key_share)
assert jobs.archive(spark, f"{here}/data", f"{here}/archive") == 4_320
archived = spark.read.parquet(f"{here}/archive")
assert archived.where("day = DATE '2023-11-16'").count() == 24 * 60
jobs.compact(spark, f"{here}/data", f"{here}/compacted", prefix="orders", bits=0)
assert pipeline.count(f"{here}/compacted") == 11
