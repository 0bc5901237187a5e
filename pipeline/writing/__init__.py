"""Rows into journals, exactly once: tasks stage them, the driver commits them."""

__all__: list[str] = []
