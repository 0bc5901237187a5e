"""Lets Spark find the source ``textqueue`` by itself; see :mod:`pyspark_sej`."""

import logging as _logging

try:
    from pipeline.formats import TextQueueSource as DefaultSource
except Exception as _error:
    _logging.getLogger("pipeline").warning("Spark does not find the source 'textqueue' by itself: %r", _error)
else:
    __all__ = ["DefaultSource"]
