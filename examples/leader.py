"""Hand over from one leader to the next: once the new one has its token, the old one cannot append any more."""

import sej

LOG = "decisions"


def lead() -> tuple[sej.SharedWriter, list[bytes]]:
    """Become the leader: take the next token, then read everything that earlier leaders have decided."""
    writer = sej.SharedWriter(LOG, token="next", durability="disk")
    with sej.Scanner(LOG) as scanner:
        return writer, [message.value for message in scanner]


old, _ = lead()
old.append(b"old decides")

# The old leader hangs, so another process takes over. Its list is complete: the old one can add nothing to it.
new, decided = lead()
new.append(b"new decides")
assert decided == [b"old decides"]

try:
    old.append(b"old decides again")  # it wakes up, and does not know that it was replaced
except sej.ConflictError as error:
    print(f"token {error.expected} is replaced by {error.found}")
finally:
    old.close()
    new.close()
with sej.Scanner(LOG) as scanner:
    assert [message.value for message in scanner] == [b"old decides", b"new decides"]
