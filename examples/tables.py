"""Journals as a table in Polars and SQL, and a sink that takes new messages in batches."""

import duckdb
import polars as pl

import pipeline
import sej


def main() -> None:
    """Ask two questions, then copy the messages batch by batch."""
    with sej.Writer("orders") as writer:
        writer.append_many([b'{"amount": %d}' % n for n in range(100)], [b"customer %d" % (n % 3) for n in range(100)])

    amount = pl.col("value").cast(pl.String).str.json_path_match("$.amount").cast(pl.Int64)
    orders = pipeline.table("orders").scan().filter(pl.col("offset") >= 50)  # older segments are not read
    print(orders.group_by(pl.col("key").cast(pl.String)).agg(amount.sum()).sort("key").collect())

    with duckdb.connect() as db:
        db.register("orders", pipeline.table("orders", columns=["value"]))
        print(db.execute("SELECT sum((decode(value)->>'$.amount')::INT) FROM orders").fetchone())

    with pipeline.follow("orders", reader="copy", timeout=0.0) as stream:
        for batch, offsets in stream:
            print(batch.num_rows, "messages up to", offsets)  # write the batch somewhere
            stream.commit(offsets)


if __name__ == "__main__":
    main()
