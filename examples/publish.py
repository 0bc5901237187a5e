"""Messages that belong together appear together: readers see all of them or none, also after a crash."""

import sej

with sej.Writer("accounts") as writer:
    span = writer.publish([b"alice -10", b"bob +10"], keys=[b"alice", b"bob"])
    print("published", span)

with sej.Scanner("accounts") as scanner:
    booked = [message.value.decode() for message in scanner]
print(booked)
assert booked == ["alice -10", "bob +10"]
