"""Event sourcing: decide from the events so far, and append new ones only if no other process has appended any."""

import json

import sej

ACCOUNT = "account-3"


class Account:
    """A balance, which is the sum of its events."""

    def __init__(self) -> None:
        self.balance = self.version = 0

    def catch_up(self) -> None:
        """Apply the events that were appended since."""
        with sej.Scanner(ACCOUNT, self.version) as scanner:
            self.balance += sum(json.loads(message.value) for message in scanner)
            self.version = scanner.offset

    def record(self, writer: sej.SharedWriter, *amounts: int) -> bool:
        """Append events, unless the money is too little or other events came in between."""
        try:
            if self.balance + sum(amounts) >= 0:
                writer.append_many([json.dumps(each).encode() for each in amounts], expect_offset=self.version)
                return True
        except sej.ConflictError as error:
            print("expected version", error.expected, "but found", error.found)
        self.catch_up()
        return False


with sej.SharedWriter(ACCOUNT) as writer:
    web, till = Account(), Account()
    assert web.record(writer, 100)
    assert not till.record(writer, 5), "it had not seen the 100"
    assert till.record(writer, -30, -1)
    assert not web.record(writer, -80) and web.balance == 69
