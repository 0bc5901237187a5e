"""``sej tq``: text queues from a shell. The topics are modules; ``textqueue.commands.group`` joins them.

The modules, in the order in which they are best read::

    group, opening, naming, output         the group; the queue of a command, the names of messages, what is printed
    adding, listing, watching, checking    add; list, next, stats, follow; watch; check
    claiming, marking, moving, editing     claim; done, fail, undo; archive, split, drain; edit
    serving, installing, versioning        the language server, files for editors, advice on version control
"""

from textqueue.commands.group import app

__all__ = ["app"]
