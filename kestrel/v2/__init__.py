"""Kestrel 2: one journal of operations, its files, and the queue that they add up to."""

__all__: list[str] = []
