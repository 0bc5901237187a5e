"""The command ``sej``: one program, whose subcommands each package contributes.

Start reading at :mod:`sej.cli.app`. Terminal libraries are imported here and nowhere else in the core, and only when
the command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the script's entry.

    Args:
        arguments: without the program's name; None: those of the process.

    Returns:
        The exit code; see :mod:`sej.cli.exits`.
    """
    from sej.cli.app import run

    return run(arguments)
