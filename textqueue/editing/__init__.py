"""Edits of a queue file: proven and made in place, appended, made durable, or the compact rewrite."""

__all__: list[str] = []
