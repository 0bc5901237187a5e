"""Copy a Kestrel queue into a journal and verify it. The queue stays until you remove it."""

import kestrel
import sej

with kestrel.Queue("spool", "cars") as queue:  # a new queue; in production this is Kestrel's directory
    queue.put_many([b"beetle", b"mini", b"2cv"])
    queue.get()

with sej.Writer("cars") as writer:
    moved = kestrel.export("spool", "cars", writer, read_back=lambda offset: sej.Scanner("cars", offset))
print(moved.count, "items moved, checksum", f"{moved.checksum:08x}")

with sej.Scanner("cars") as scanner:
    print([message.value.decode() for message in scanner])
assert moved.count == 2
