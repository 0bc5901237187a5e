"""A journal on disk: its directory, segments, index and gaps; reading, checking, repairing and retention."""

__all__: list[str] = []
