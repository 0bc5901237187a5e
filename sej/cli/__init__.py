"""The command ``sej``: one program, to which each package contributes subcommands.

Start reading at :mod:`sej.cli.app`. The core imports terminal libraries only here, and only when the command runs.
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
