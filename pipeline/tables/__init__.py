"""Tables without Spark: journals, hubs, text queues and Kestrel queues as Arrow, Polars and pandas."""

__all__: list[str] = []
