"""Lets Spark find the source ``sej`` by itself: ``spark.read.format("sej")`` needs no ``pipeline.register``.

Spark imports every top-level module whose name begins with ``pyspark_``, and registers its ``DefaultSource``. If one
import fails, Spark finds no Python source at all. So this import never fails: it logs the reason and defines nothing.
"""

import logging as _logging

try:
    from pipeline.formats import SejSource as DefaultSource
except Exception as _error:
    _logging.getLogger("pipeline").warning("Spark does not find the source 'sej' by itself: %r", _error)
else:
    __all__ = ["DefaultSource"]
