"""Kestrel 2: one journal of operations, its files, and the queue that they add up to.

The modules, in the order in which they are best read::

    format, codec                  opcodes, and operations as bytes
    listing, journal               which files are the journal, and reading one of them
    rules, replay, items           what operations add up to
    queue, contents, backlog       the queue: its files and its items in memory, changed together
    storage, packing               the files: append, rotate, rewrite, pack; a queue for reading only
    hot                            the compiled part
    moving                         into a SEJ journal and back
"""
