"""Find damage, read past it, and repair it: one message is lost, and the journal records which one."""

from pathlib import Path

import sej

with sej.Writer("orders") as writer:
    writer.append_many([b"order %d" % number for number in range(100)])

segment = Path("orders/jnl/0000000000000000.jnl")
damaged = bytearray(segment.read_bytes())
damaged[1000:1010] = b"\xff" * 10
segment.write_bytes(damaged)

journal = sej.Journal("orders")
for problem in journal.verify():
    print(problem.kind, "at", problem.position, "offset", problem.offset)

with sej.Scanner("orders", on_corruption="skip") as scanner:
    assert len(list(scanner)) == 99
    print("passed:", scanner.gaps)

print("it would:", journal.repair(dry_run=True).notes)
done = journal.repair()
print("the damaged bytes are in", done.kept)
assert journal.verify() == []
assert sum(gap.missing for gap in done.gaps) == 1
