"""A consumer continues after a message that it cannot handle, and the message is not lost."""

import sej

JOURNAL, DEAD = "orders", "orders-dead"


def handle(message: sej.Message) -> None:
    """Handle an order. A wrong one raises."""
    print("shipping", int(message.value), "pieces")


with sej.Writer(JOURNAL) as writer:
    writer.append_many([b"3", b"three", b"5"])

consumer = sej.Consumer(JOURNAL, "shipping", max_attempts=2, dead_letter=DEAD, backoff_s=0.01)
print("handled", consumer.run(handle, timeout=0.0))

for letter in sej.dead_letters(DEAD):
    print("dead:", letter.message.value, "after", letter.attempts, "attempts:", letter.reason)
