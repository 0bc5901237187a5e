"""Append a few messages, read them back, and go on from a kept offset."""

import sej

JOURNAL = "journal"  # a directory that the writer makes


def main() -> None:
    """Write, read twice under one name, and see that the second time starts where the first ended."""
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
