"""A Kestrel queue moves into a journal, verified, and stays where it is until you remove it."""

import kestrel
import sej

with kestrel.Queue("spool", "cars") as queue:  # here a new one; in life Kestrel's directory
    queue.put_many([b"beetle", b"mini", b"2cv"])
    queue.get()

with sej.Writer("cars") as writer:
    moved = kestrel.export("spool", "cars", writer, read_back=lambda offset: sej.Scanner("cars", offset))
print(moved.count, "items moved, checksum", f"{moved.checksum:08x}")

with sej.Scanner("cars") as scanner:
    print([message.value.decode() for message in scanner])
assert moved.count == 2
