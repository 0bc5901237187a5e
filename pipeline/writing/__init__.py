"""Rows into journals, exactly once: tasks stage them, the driver commits them."""
