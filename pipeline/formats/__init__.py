"""Spark's formats, one module for each: ``sej``, ``textqueue``, ``kestrel``."""

__all__: list[str] = []
