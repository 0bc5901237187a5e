"""The command ``sej``: one program, to which each package contributes subcommands.

The core imports terminal libraries only here, and only when the command runs. The modules and subpackages, in the order
in which they are best read. Each imports only from those below it::

    app                                finds a subcommand and loads only that one; errors as exit codes
    reading, maintenance               messages and kept offsets; changing and checking journals
    stat, bench                        the state of journals, once, live, and with what to do; the speed of this disk
    queue                              work queues, their items and schedules
    worker                             a function for each item; from and to other programs
    shared                             what commands share: options, lines of output, exit codes, findings, readers
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
        The exit code; see :mod:`sej.cli.shared.command`.
    """
    try:
        from sej.cli.app import run

        code = run(arguments)
    except KeyboardInterrupt:  # while the program was loading
        code = 130
    # After an interrupt within `exec`, which dataclasses call, `python -m` ends by SIGINT even if the interrupt was
    # handled, until another `exec` has returned.
    try:
        exec("")
    except KeyboardInterrupt:
        code = 130
    if arguments is None:  # the process ends now, and its last search for garbage would visit every loaded module
        import gc

        gc.freeze()
    return code
