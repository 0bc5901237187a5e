"""Rows into many journals, all of them or none, once: tasks stage them, one process commits them."""
