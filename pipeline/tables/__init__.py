"""Tables without Spark: journals, hubs, text queues and Kestrel queues as Arrow, Polars and pandas.

The modules, in the order in which they are best read::

    table, lazy                 pipeline.table and the threads that read; a table as a Polars LazyFrame
    where                       which rows: the arguments start, end and where
    stream, shipping            pipeline.follow, and sej ship
    query, output, commands     sej sql, export and ship
"""
