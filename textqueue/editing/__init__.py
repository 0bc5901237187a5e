"""Edits of a queue file: edits in place, each proven first; appends; syncs; and the archive.

The modules, in the order in which they are best read::

    message, proof              a message, its place, and the proof that it is still there
    reconcile                   after a change by an editor: what its buffer has not seen is done again
    queue_file                  the changes of one file, also while programs save it without the lock
    tq_file, durable            the changes of messages, with retries; syncs; what a reader need not see again
    archive_and_split           move messages elsewhere

Whether a mark counts is judged in three places: after a save in ``reconcile``, when a program marks a message in
``message.marking``, and when a claim ends in ``textqueue.claiming``.
"""
