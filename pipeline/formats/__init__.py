"""What Spark calls a format, one module each: ``sej``, ``textqueue``, ``kestrel``."""

__all__: list[str] = []
