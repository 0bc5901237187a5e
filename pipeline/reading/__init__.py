"""Journals as tables and streams: discovering them, planning which task reads what, and reading."""

__all__: list[str] = []
