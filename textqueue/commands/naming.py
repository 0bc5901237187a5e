"""The names of messages: a position and a hash.

The name of a message is its position, which is the byte at which it begins, and a hash of its text and variables:
``7:0c3f90a1``. A mark changes neither. If a user inserts a line above, the position alone would name another message.
In a queue of several files, the name begins with the file: ``ann.tq:7:0c3f90a1``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from sej.system.paths import absolute_path
from textqueue.commands.output import refuse
from textqueue.editing.message import Message
from textqueue.format.grammar import MessageStatus
from textqueue.format.parser import digest, essence
from textqueue.queue import TextQueue

NAMES: Final = click.argument("names", metavar="[POSITION:HASH]...", nargs=-1)
_NAME: Final = re.compile(r"(?:.*:)?\d+:[0-9a-f]{8}")


def hash_of(message: Message) -> str:
    """Return the second part of the name of a message."""
    return digest(essence(message.raw))[:8].decode()


def name_of(message: Message, path: Path) -> str:
    """Return the name of a message of a queue: with its file, unless the queue is this one file."""
    file = "" if message.path == absolute_path(path) else f"{os.path.basename(message.path)}:"
    return f"{file}{message.position}:{hash_of(message)}"


def require_names(names: Iterable[str]) -> None:
    """Check the form of names.

    Raises:
        click.UsageError: a name has another form.
    """
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise click.UsageError(
                f"expected POSITION:HASH, as `sej tq list` prints it, got {name!r}: a position alone would name"
                " another message after a line was inserted above"
            )


def named(queue: TextQueue, path: Path, names: Sequence[str]) -> list[Message]:
    """Return the messages of some names. If one of them is missing or ambiguous, the command ends.

    In a queue of several files, a name without a file is enough if only one message has it.
    """
    there: dict[str, list[Message]] = {}
    for message in queue.messages(frozenset(MessageStatus)):
        for name in {name_of(message, path), f"{message.position}:{hash_of(message)}"}:
            there.setdefault(name, []).append(message)
    for name in names:
        found = there.get(name, [])
        if len(found) > 1:
            known = " or ".join(name_of(one, path) for one in found)
            refuse(path, f"{len(found)} messages have the name {name}, so none was changed; choose {known}")
        if not found:
            end = name[name.rindex(":") :]
            alike = dict.fromkeys(
                name_of(one, path) for other, ones in there.items() if other.endswith(end) for one in ones
            )
            hint = f"it is {' or '.join(alike)} now" if alike else "`sej tq list` prints the messages"
            refuse(path, f"no message {name} is in the file, so none was changed; {hint}")
    return list(dict.fromkeys(there[name][0] for name in names))
