"""Lets Spark find the source ``kestrel`` by itself; see :mod:`pyspark_sej`."""

import logging as _logging

try:
    from pipeline.formats import KestrelSource as DefaultSource
except Exception as _error:
    _logging.getLogger("pipeline").warning("Spark does not find the source 'kestrel' by itself: %r", _error)
else:
    __all__ = ["DefaultSource"]
