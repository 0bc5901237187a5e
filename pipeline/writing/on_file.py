"""The sink of a text queue: a batch is appended as one write under the file's lock.

``.NAME.tq.spark`` next to the file records which batches it has: the name of the job, the last number, and during an
append its content, so that the next job can tell whether the append happened.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any, Final

from sej.system.disk import OS
from sej.system.locks import Lock
from sej.system.sealed import SealedFile, whole
from textqueue import MessageStatus, TextQueue
from textqueue.editing.message import require_valid
from textqueue.format.parser import render
from textqueue.sidecar import Guard, sidecar_path

_LOCK_S: Final = 60.0
_LEDGER_BYTES: Final = 1 << 28


class OnFile:
    """A place for a job's rows: the tasks send them to the driver. Text queues are for people, so there are not many.

    Attributes:
        bits: always None, because a text queue has no shards.
    """

    bits = None

    def __init__(self, path: str) -> None:
        """Set the file."""
        self._path = path

    def stage(self, _: str, __: int | None) -> _Stage:
        """Return the rows of one task."""
        return _Stage()

    def commit(self, job: str, name: str | None, number: int | None, rows: list[str]) -> None:
        """Append the rows of all tasks in one write, unless they are there already."""
        _append_once(self._path, name or f"job-{job}", number or 0, rows, keep=number is not None)

    def abort(self, job: str) -> None:
        """Do nothing: nothing was written."""


class _Stage:
    def __init__(self) -> None:
        self._rows: list[str] = []

    def append(self, _: int, values: list[bytes], *__: object) -> None:
        self._rows += [value.decode() for value in values]

    def finish(self) -> list[str]:
        return self._rows

    def drop(self) -> None:
        self._rows = []


def _append_once(path: str, name: str, number: int, rows: list[str], *, keep: bool) -> None:
    """Append a batch unless the file has it. keep: record its number permanently.

    Raises:
        InvalidTextError: a row is empty or NULL, or the format has no way to write it.
    """
    # A batch that can never be appended must not become an intent, which every later job completes.
    require_valid([(row, ()) for row in rows], MessageStatus.queued, path)
    ledger = _ledger(sidecar_path(path, ".spark"))
    with Lock(f"{ledger.path}.lck", what=f"the commit of another job to {path}").acquire(timeout=_LOCK_S):
        known = _load(ledger)
        intent = known["intent"]
        if intent is not None:  # a job died in this block, perhaps because of a failed sync
            OS.sync_dir(os.path.dirname(os.path.abspath(ledger.path)))
            _cut_torn(path, intent)
        with TextQueue(path, settle_s=0.0) as queue:
            if intent is not None:
                if _occurrences(queue, intent["rows"]) == intent["before"]:
                    _append(queue, intent["rows"])
                queue.sync()
                _note(known, intent["name"], intent["number"], keep=intent["keep"])
            if not (keep and number <= known["done"].get(name, -1)):
                if rows:
                    there = OS.status(path)
                    mark = {"name": name, "number": number, "keep": keep, "rows": rows}
                    mark |= {"before": _occurrences(queue, rows), "size": 0 if there is None else there.size}
                    ledger.store({**known, "intent": mark})
                    _append(queue, rows)
                _note(known, name, number, keep=keep)
            ledger.store(known)


def _cut_torn(path: str, intent: dict[str, Any]) -> None:
    """Remove the beginning of an append that died during its write, if the file has not changed since."""
    if OS.status(path) is None:
        return
    guard = Guard(path, disk=OS, timeout=_LOCK_S)
    with closing(guard), guard, OS.open(path, "edit") as file:
        size = file.status().size
        tail = file.read(max(size - intent["size"], 0), intent["size"])
        for end in (b"", b"\n", b"\r\n"):  # of the line before
            for newline in (b"\n", b"\r\n"):
                whole = end + b"".join(render(row, newline=newline) for row in intent["rows"])
                if tail and len(tail) < len(whole) and whole.startswith(tail):
                    file.truncate(intent["size"])
                    return


def _append(queue: TextQueue, rows: list[str]) -> None:
    queue.append_many(rows)
    queue.sync()


def _occurrences(queue: TextQueue, texts: list[str]) -> int:
    """Count how often these texts are in the file in this order, one after the other, with any status."""
    there = [message.value for message in queue.messages(set(MessageStatus))]
    starts = [at for at, text in enumerate(there) if text == texts[0]]  # a comparison of slices copies them
    return sum(there[at : at + len(texts)] == texts for at in starts)


def _note(known: dict[str, Any], name: str, number: int, *, keep: bool) -> None:
    known["intent"] = None
    if keep:
        known["done"][name] = max(number, known["done"].get(name, -1))


def _ledger(path: str) -> SealedFile:
    way_out = "restore a copy, or compare the end of the text queue with the last batch and then remove this file"
    what = "a readable record of Spark's appends"
    return SealedFile(OS, path, what, way_out, temporary=f"{path}.new", max_bytes=_LEDGER_BYTES)


def _load(ledger: SealedFile) -> dict[str, Any]:
    with ledger.checking():
        known = ledger.load() or {"done": {}, "intent": None}
        for number in known["done"].values():
            whole(number, -1)
        intent = known["intent"]
        if intent is not None:
            whole(intent["number"]), whole(intent["before"]), whole(intent["size"])
            if not {"name", "keep", "rows"} <= intent.keys():
                raise ValueError(f"its intent has the members {sorted(intent)}")
    return known
