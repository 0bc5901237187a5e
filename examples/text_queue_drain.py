"""Move the messages of a text file into a journal, each one once, even if a process dies in between."""

from pathlib import Path

import sej
import textqueue

Path("wishes.tq").write_text("# one on each line\n-more tea\n-a window that opens\n=a chair\n")

for problem in textqueue.check("wishes.tq"):
    print(f"line {problem.line}: {problem.what}; {problem.mend}")

with textqueue.TextQueue("wishes.tq") as queue, sej.Writer("wishes") as writer:
    print("moved", queue.drain_to(writer, key=lambda message: message.value.split()[-1].encode()))
    print("again", queue.drain_to(writer))  # for example after a crash

print(Path("wishes.tq").read_text())
with sej.Scanner("wishes") as scanner:
    moved = [(message.key, message.value) for message in scanner]
assert moved == [(b"tea", b"more tea"), (b"opens", b"a window that opens")]
