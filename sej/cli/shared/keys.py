"""Keys for commands that show a live table: q ends them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_KEYS: Final = 64


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Read keys as they are pressed, without echo, until the block ends."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def wait(seconds: float) -> bool:
    """Wait for the next sample; return False if q was pressed in a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        time.sleep(seconds)
        return True
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), _KEYS)
            if not pressed or b"q" in pressed:
                return False
    return True
