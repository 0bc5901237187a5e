"""Read from a time on, and read the last messages first."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import sej

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def ns(time: datetime) -> int:
    """Return nanoseconds since the epoch, as in messages."""
    return int(time.timestamp()) * 1_000_000_000


with sej.Writer("doors") as writer:
    for minute in range(-60, 60):
        writer.append(b"door %d" % (minute % 4), timestamp=ns(NOON + timedelta(minutes=minute)))

with sej.Scanner("doors") as scanner:
    scanner.seek_time(ns(NOON))
    first = next(iter(scanner))
    print("the first from noon on:", first.offset, first.time)

journal = sej.Journal("doors")
print("before noon:", journal.find_time(ns(NOON)) - journal.first_offset)
print("the last three:", [message.value.decode() for message in journal.tail(3)])
print("door 2 was last used", next(m.time for m in journal.reversed() if m.value == b"door 2"))
assert first.time == NOON
assert [m.offset for m in islice(journal.reversed(), 2)] == [119, 118]
