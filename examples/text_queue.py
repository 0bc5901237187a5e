"""People put work into a text file with an editor. Programs mark finished messages in place."""

import contextlib
from pathlib import Path

import textqueue

Path("jobs.tq").write_bytes(b"# typed by hand\n")
with textqueue.TextQueue("jobs.tq") as queue:
    queue.append("ship order 17")
    queue.append("ship order x", variables=["retries=1 "])
    while True:
        with contextlib.suppress(ValueError), queue.claim() as message:
            if message is None:
                break
            print("order", int(message.value.split()[-1]))  # "x" is not a number: the message fails
    for message in queue.messages(set(textqueue.MessageStatus)):
        print(message.status.name, message.value)
