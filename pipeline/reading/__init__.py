"""Journals as tables and streams: what a path means, what is there, which task reads what, and the reading itself."""

__all__: list[str] = []
