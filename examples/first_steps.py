"""Append a few messages, read them back, and continue from a saved offset."""

import sej

JOURNAL = "journal"  # a directory that the writer creates


def main() -> None:
    """Write, then read twice under one name: the second time starts where the first one ended."""
    with sej.Writer(JOURNAL) as writer:
        writer.append_many([b"one", b"two", b"three"])

    for _ in range(2):
        with sej.Offset(JOURNAL, "example") as kept, sej.Scanner(JOURNAL, kept.value) as scanner:
            for message in scanner:
                print(message.offset, message.value.decode())
                kept.commit(message.offset + 1)
        print("that was all")


if __name__ == "__main__":
    main()
