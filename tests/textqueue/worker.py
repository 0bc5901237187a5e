"""One of several processes on one queue file: claims, notes what it handled, and marks. Run as a script.

Each message that it handles is noted twice in a file opened for appending: when its work begins and when it ends, so
that the test sees any two that worked on one message at once.
"""

import os
import sys

from textqueue import TextQueue


def main(path: str, notes: str, stop: str) -> None:
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND)
    q = TextQueue(path)
    me = os.getpid()
    while True:
        over = os.path.exists(stop)
        with q.claim() as m:
            if m is not None:
                os.write(fd, f"+ {me} {m.value}\n".encode())
                os.write(fd, f"- {me} {m.value}\n".encode())
        if m is None and over:
            break
    for conflict in q.conflicts:
        if conflict.kind in ("collision", "changed"):
            os.write(fd, f"! {me} {conflict.kind} {conflict.text.encode()!r} {conflict.action}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
