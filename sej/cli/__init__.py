"""The command ``sej``: one program, to which each package contributes subcommands.

The core imports terminal libraries only here, and only when the command runs. The modules, in the order in
which they are best read::

    app, installed, exits                    finds a subcommand and loads only that one; errors as exit codes
    writing, reading, offsets, lookup        append; count, scan, tail, dump; offset, reset, follow; file, old
    stat, top, watched, reader_state         the state of journals, once or live
    checking, doctor, findings, packages     verify and doctor
    maintenance                              repair, clean, merge, index
    queue, queue_items, places               work queues; which queue is meant
    worker, supervising                      worker, and the processes that it supervises
    bench                                    measures this disk
    options, parameters, units               options and their types, shared by commands
    output, decoding, progress, keys, logs   lines, JSON, progress bars, a live table, log records
    programs, pipes, journals                programs that a command starts; a closed pipe; journals for other packages
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the entry point of the ``sej`` script.

    Args:
        arguments: the arguments without the program's name; None uses those of the process.

    Returns:
        The exit code; see :mod:`sej.cli.exits`.
    """
    try:
        from sej.cli.app import run

        code = run(arguments)
    except KeyboardInterrupt:  # while the program was loading
        code = 130
    # After an interrupt within `exec`, which dataclasses call, `python -m` ends by SIGINT even if the interrupt was
    # handled, until another `exec` has returned.
    exec("")
    if arguments is None:  # the process ends now, and its last search for garbage would visit every loaded module
        import gc

        gc.freeze()
    return code
