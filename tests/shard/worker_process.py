"""A worker as a program: fences each shard by a lock of the test's own, logs what it handled, ticks on standard output.

Usage: worker_process.py ROOT PREFIX BITS NAME LOGS
"""

import fcntl
import os
import struct
import sys
import time

import sej
import shard

RECORD = struct.Struct(">IQdd")  # shard, offset, begin, end by the system-wide monotonic clock
VIOLATION = 1 << 31


def main() -> None:
    root, prefix, bits, name, logs = sys.argv[1:]
    path = shard.Path(root, prefix, int(bits))
    log = os.open(f"{logs}/{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fences: dict[int, int] = {}

    def handle(index: int, message: sej.Message) -> None:
        fence = fences.get(index)
        if fence is None:
            fence = fences[index] = os.open(f"{logs}/{index:03x}.fence", os.O_RDWR | os.O_CREAT)
        begin = time.monotonic()
        number = index
        try:
            fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            number |= VIOLATION
        os.write(log, RECORD.pack(number, message.offset, begin, time.monotonic()))
        fcntl.flock(fence, fcntl.LOCK_UN)
        os.write(1, b".")

    shard.Worker(path, name).run(handle)


if __name__ == "__main__":
    main()
