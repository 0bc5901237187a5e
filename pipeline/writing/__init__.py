"""Rows into journals, exactly once: tasks stage them, the driver commits them.

The modules, in the order in which they are best read::

    sink                what a task does with rows, and the commit of all tasks
    places, on_file     where the rows go: a disk or a hub; a text queue
"""
