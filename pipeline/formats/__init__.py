"""Spark's formats, one module for each: ``sej``, ``textqueue``, ``kestrel``."""

import sys as _sys

from pipeline.daemon import end_quietly as _end_quietly

_main = _sys.modules["__main__"]
if getattr(_main.__spec__, "name", None) == "pyspark.daemon":  # a worker that plans
    _end_quietly(_main)
