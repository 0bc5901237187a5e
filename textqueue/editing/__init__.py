"""Edits of a queue file: edits in place, each proven first; appends; syncs; and the archive."""

__all__: list[str] = []
