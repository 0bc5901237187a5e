"""Kestrel 2: one journal of operations, its files, and the queue that they add up to.

The modules, in the order in which they are best read::

    format                         operations, and how they are decoded and encoded
    journal                        which files are the journal, reading one of them; append, rotate, rewrite
    items, replay                  what waits and is reserved, what operations do to it, what a journal adds up to
    queue, contents                the queue: its files and its items in memory, changed together; packing and moving
"""
