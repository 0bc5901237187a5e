"""A worker process on a queue file that several share: takes messages, logs them, and marks them. Run as a script.

It appends two lines for each message to a log that all workers share: when the work begins, and when it ends, before
the mark. So the test finds any two workers that had one message concurrently.
"""

import os
import sys
from collections.abc import Callable

from textqueue import Message, TextQueue, TextQueueError

Note = Callable[[str, str], None]


def by_claim(q: TextQueue, note: Note) -> bool:
    """Claim the next message, work, and clear it; return False if no message is free."""
    with q.claim() as m:
        if m is not None:
            work(m, note)
    return m is not None


def by_mark(q: TextQueue, note: Note) -> bool:
    """Read the next message, work, and mark it. Odd numbers become errors, so that the test finds wrong marks."""
    m = q.get_next()
    if m is None:
        return False
    work(m, note)
    mark = m.mark_as_critical_error if int(m.value.split()[1]) % 2 else m.mark_as_cleared
    while True:
        try:
            mark()
        except TextQueueError as error:  # on a slow disk, the user may save too often for 10 seconds
            if "saving or replacing the file" not in str(error):
                raise
        else:
            return True


def work(m: Message, note: Note) -> None:
    note("+", m.value)
    for _ in range(3):
        os.sched_yield()  # so that another worker may come between
    note("-", m.value)


def main(how: str, path: str, notes: str, stop: str) -> None:
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND)
    me = os.getpid()

    def note(what: str, text: str) -> None:
        os.write(fd, f"{what} {me} {text.encode()!r}\n".encode())

    take = {"claim": by_claim, "mark": by_mark}[how]
    with TextQueue(path) as q:
        while True:
            over = os.path.exists(stop)
            if not take(q, note) and over:
                break
        for conflict in q.conflicts:
            if conflict.kind == "changed":  # a collision may happen: the test looks at the file
                note("!", f"{conflict.kind} {conflict.text!r}: {conflict.action}")


if __name__ == "__main__":
    main(*sys.argv[1:])
