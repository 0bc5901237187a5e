"""One process appends, and another one follows it."""

import multiprocessing

import sej

JOURNAL = "temperatures"


def produce() -> None:
    """Append ten readings. Readers see each one immediately."""
    with sej.Writer(JOURNAL) as writer:
        for number in range(10):
            writer.append(b"%d.5" % (20 + number), b"kitchen")


if __name__ == "__main__":
    sej.Writer(JOURNAL).close()  # creates the journal, so that a reader can follow it
    producer = multiprocessing.Process(target=produce)
    producer.start()
    with sej.Scanner(JOURNAL, timeout=10.0) as scanner:  # timeout=None waits for more
        for message in scanner:
            print(message.time, message.key.decode(), message.value.decode())
            if message.offset == 9:
                break
    producer.join()
