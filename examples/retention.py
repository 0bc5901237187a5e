"""Remove old segments, but none that a reader with a saved offset still needs."""

import sej

JOURNAL = "clicks"

with sej.Writer(JOURNAL, segment_bytes=1000) as writer:
    writer.append_many([b"click %d" % number for number in range(1000)])

journal = sej.Journal(JOURNAL)
with sej.Offset(JOURNAL, "report") as kept:
    print("the reader needs all:", journal.clean(max_bytes=10_000))
    kept.commit(500)
    print("it has read half:", len(journal.clean(max_bytes=10_000)), "segments gone")

try:
    sej.Scanner(JOURNAL, 0)
except sej.OffsetTooSmallError as error:
    print("the first that is left:", error.first_available)
