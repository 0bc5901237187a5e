"""Edits of a queue file: edits in place, each proven first; appends; syncs; and the archive.

The modules, in the order in which they are best read::

    message, proof              a message, its place, and the proof that it is still there
    queue_file, append          one file and the changes of it, also while programs save it without the lock
    source, durable             the changes of messages, with retries; syncs
    plan, reconcile             after a change by an editor: decide, then act
    save, replace               a save of an old buffer, merged with what programs wrote
    delivered, conflicts        what a reader need not see again; reports, also of what a save removed
    archive, split, undo        move messages elsewhere, take marks back
"""
