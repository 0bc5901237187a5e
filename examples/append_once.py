"""A producer does not know whether its last batch was appended, and sends it again: no message is stored twice."""

import sej

JOURNAL = "readings"


def send(number: int, readings: list[bytes]) -> range:
    """Send batch `number` of this producer, as often as you like."""
    with sej.Writer(JOURNAL) as writer:
        return writer.append_once("sensor-7", number, readings)


first = send(1, [b"20.5", b"20.6"])
again = send(1, [b"20.5", b"20.6"])  # for example after a crash
send(2, [b"20.9"])
print(first, again, sej.Journal(JOURNAL).end_offset)
assert first == again
assert sej.Journal(JOURNAL).end_offset == 3
