"""Flights for a person: a text file that is a queue, edited with any editor.

A second run adds what is not in the file yet, and leaves what the person has done to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from demo.flights import AIRPORTS
from textqueue import MessageStatus, TextQueue

HOW_TO_EDIT = """\
Open it with any editor. Each flight is a line, and its first character says what became of it:
  -  to be looked at        change it to  =  when you are done,  or to  !  where it cannot be settled
  #  a comment of yours     a line that begins with a blank goes on with the text above it
Save whenever you like, also while programs work on the file. Run make demo again: what you marked stays marked."""


class Review(NamedTuple):
    """The content of the file.

    Attributes:
        added: flights that this run added.
        total: flights in it, with any mark.
        settled: flights that a person marked.
    """

    added: int
    total: int
    settled: int


def fill(path: Path, late: list[dict[str, Any]]) -> Review:
    """Put the flights into the queue that are not in it yet."""
    everything = {MessageStatus.queued, MessageStatus.cleared, MessageStatus.critical}
    with TextQueue(path, settle_s=0.0) as queue:
        known = {_text(message.value) for message in queue.messages(everything)}
        new = [text for text in map(describe, late) if text not in known]
        queue.append_many(new)
        queue.sync()
        there = [_text(message.value) for message in queue.messages(everything)]
        waiting = sum(1 for _ in queue.messages())
    wanted = {describe(row) for row in late}
    return Review(len(new), len(wanted & set(there)), len(there) - waiting)


def describe(row: dict[str, Any]) -> str:
    """A flight in one line."""
    hours, minutes = divmod(row["dep_delay"], 60)
    day = f"2013-{row['month']:02}-{row['day']:02} {row['hour']:02}:{row['minute']:02}"
    tail = row["tailnum"] or "no tail number"
    return (
        f"{day} {row['carrier']}{row['flight']} {AIRPORTS[row['airport']]} ({row['airport']}) to {row['dest']}:"
        f" left {hours} h {minutes:02} min late, {tail}"
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
