"""A process that works off an ordered queue until it is killed, and reports each item before and after its work."""

import os
import sys

from sej.queue.interface.queue import open_queue


def main(path: str, report: str) -> None:
    fd = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    step = 0
    with open_queue(path, "worker", max_attempts=10_000, compact_bytes=20_000) as q:
        while True:
            for item in q.get_many(step % 4 + 1, timeout=None):
                step += 1
                what = f"{item.key.decode()} {item.value.decode()}"
                os.write(fd, f"begin {what}\n".encode())  # one write: lines of several processes do not mix
                if step % 5 == 0:
                    item.retry(0.0)
                    continue
                os.write(fd, f"end {what}\n".encode())
                item.done()


if __name__ == "__main__":
    main(*sys.argv[1:])
