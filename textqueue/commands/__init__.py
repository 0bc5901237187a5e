"""``sej tq``: text queues from a shell.

A queue is a ``.tq`` file, a directory of such files, or a pattern for names of files: every command takes each of them.
Every command prints the conflicts that it found (``TextQueue.conflicts``) on standard error.

The modules, in the order in which they are best read::

    group                                  joins the commands
    opening                                the queue of a command, the names of messages, what is printed
    marking, listing                       add, done, fail, undo, check, claim; list, next, stats, follow, watch
    moving                                 archive, split, drain, edit
    installing                             files for editors, the language server
"""

from textqueue.commands.group import app

__all__ = ["app"]
