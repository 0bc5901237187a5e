"""Edits of a queue file: edits in place, each proven first; appends; syncs; and the archive.

The modules, in the order in which they are best read::

    message, place, proof                  a message, its place, and the proof that it is still there
    queue_file, edits, append              one file and the changes of it
    source, durable, lease                 retries, syncs, and programs that do not use the lock
    plan, reconcile                        after a change by an editor: decide, then act
    merge, save, replace                   a save of an old buffer, merged with what programs wrote
    removed, delivered, conflicts          what a save removed; what a reader need not see again; reports
    archive, split, undo                   move messages elsewhere, take marks back
"""
