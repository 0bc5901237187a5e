"""The real command in a real terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

from tests.cli.command import COMMAND, ENV

LINES, COLUMNS = 30, 140


@contextmanager
def terminal(
    *words: str | Path, env: dict[str, str] | None = None, command: list[str] | None = None, columns: int = COLUMNS
) -> Iterator["pexpect.spawn[bytes]"]:
    """Start ``sej`` (or another command) in a pty of its own; it is ended with the block."""
    program, *first = COMMAND if command is None else command
    told = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
    environment = {name: value for name, value in ENV.items() if name not in told}
    environment |= {"TERM": "xterm-256color", **(env or {})}
    arguments = [*first, *map(str, words)]
    running: pexpect.spawn[bytes] = pexpect.spawn(
        program, arguments, env=environment, timeout=30, dimensions=(LINES, columns)
    )
    try:
        yield running
    finally:
        running.close(force=True)


def ended(running: "pexpect.spawn[bytes]") -> tuple[int | None, bytes]:
    """Return the exit code, and the text in the terminal since the last match."""
    running.expect(pexpect.EOF)
    text = bytes(running.before or b"")
    running.wait()
    assert b"Traceback" not in text, text.decode()
    return running.exitstatus, text
