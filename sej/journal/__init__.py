"""A journal on disk: its directory, segments, index, gaps; reading, judging, repairing and thinning it out."""

__all__: list[str] = []
