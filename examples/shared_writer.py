"""Several processes append to one journal, each for a moment. No process is refused, and the offsets have no gap."""

import multiprocessing

import sej

LOG = "audit"


def record(name: bytes) -> None:
    """Append a few events of one program."""
    with sej.SharedWriter(LOG) as writer:
        for number in range(50):
            writer.append(b"event %d" % number, name)


if __name__ == "__main__":
    programs = [multiprocessing.Process(target=record, args=(name,)) for name in (b"web", b"mail", b"cron")]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    with sej.Scanner(LOG) as scanner:
        messages = list(scanner)
    assert [message.offset for message in messages] == list(range(150))
    mail = [message.value for message in messages if message.key == b"mail"]
    assert mail == [b"event %d" % number for number in range(50)]  # the events of each program are in order
    print(len(messages), "events of three programs")
