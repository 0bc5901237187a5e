"""Query journals as a table in Spark: how many orders does each customer have?"""

import pipeline
import sej

with sej.Writer("orders") as writer:
    for number in range(1000):
        writer.append(b"order %d" % number, b"customer %d" % (number % 3))

spark = pipeline.session("example")
orders = spark.read.format("sej").load("orders")
counts = orders.selectExpr("decode(key, 'UTF-8') AS customer").groupBy("customer").count().orderBy("customer")
rows = {row.customer: row["count"] for row in counts.collect()}
print(rows)
spark.stop()
assert rows == {"customer 0": 334, "customer 1": 333, "customer 2": 333}
