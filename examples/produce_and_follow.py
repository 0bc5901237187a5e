"""One process appends, another follows it as it happens."""

import multiprocessing

import sej

JOURNAL = "temperatures"


def produce() -> None:
    """Append ten readings, each on its way to readers as soon as it is appended."""
    with sej.Writer(JOURNAL) as writer:
        for number in range(10):
            writer.append(b"%d.5" % (20 + number), b"kitchen")


if __name__ == "__main__":
    sej.Writer(JOURNAL).close()  # so that there is something to follow
    producer = multiprocessing.Process(target=produce)
    producer.start()
    with sej.Scanner(JOURNAL, timeout=10.0) as scanner:  # timeout=None follows for ever
        for message in scanner:
            print(message.time, message.key.decode(), message.value.decode())
            if message.offset == 9:
                break
    producer.join()
