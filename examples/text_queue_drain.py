"""What people typed moves into a journal, each message once, whatever dies in between."""

from pathlib import Path

import sej
import textqueue

Path("wishes.tq").write_text("# one a line\n-more tea\n-a window that opens\n=a chair\n")

for problem in textqueue.check("wishes.tq"):
    print(f"line {problem.line}: {problem.what}; {problem.mend}")

with textqueue.TextQueue("wishes.tq") as queue, sej.Writer("wishes") as writer:
    print("moved", queue.drain_to(writer, key=lambda message: message.value.split()[-1].encode()))
    print("again", queue.drain_to(writer))  # after a crash, say

print(Path("wishes.tq").read_text())
with sej.Scanner("wishes") as scanner:
    moved = [(message.key, message.value) for message in scanner]
assert moved == [(b"tea", b"more tea"), (b"opens", b"a window that opens")]
