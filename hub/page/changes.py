"""The changes that the page offers with ``--allow-changes``: each is shown first, made by a POST, and logged.

:mod:`hub.page.serving` has checked the viewer, the origin and the form before a change is made. The log of
``hub.page.changes`` has one line for each change, with the name of the viewer's token, or with the address if the
server has no tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from hub.page.pages import (
    Context,
    MissingError,
    PageFunction,
    View,
    address,
    cells,
    journal_address,
    number_in,
    trail_of,
)
from sej.cli.reading import describe_reset, move_reader, require_movable, reset_target
from sej.cli.shared.readers import readers_of
from sej.journal.directory import Directory
from sej.journal.offset_check import check_reader
from sej.journal.view import Journal
from sej.queue.interface.queue import open_queue
from sej.queue.listing import QueueLook
from sej.system.disk import OS

_log = logging.getLogger(__name__)
_Query = Mapping[str, str]


class ChangedError(ValueError):
    """What the viewer saw is not so any more: another process changed it meanwhile."""


def reader(context: Context, query: _Query) -> View:
    """Show where a reader is and, with a place, what moving it there would do."""
    path, name = context.require_journal(query.get("path", "")), query.get("reader", "")
    offset = _offset_of(path, name)
    place = query.get("to", "").strip()
    values: dict[str, object] = {"path": path, "reader": name, "offset": offset, "to": place, "preview": None}
    if place:
        target = _target(path, place)
        require_movable(Path(path), name, target)
        values |= {"preview": describe_reset(Journal(path), offset, target), "target": target}
    return View("change_reader.html", f"Move reader {name}", values, trail_of(path))


def change_reader(context: Context, form: _Query, who: str) -> str:
    """Move a reader as the preview showed; return the address to show next.

    Raises:
        ChangedError: the reader has committed since the preview.
        LockedError: the reader runs.
    """
    path, name = context.require_journal(form.get("path", "")), form.get("reader", "")
    before, seen = _offset_of(path, name), form.get("seen", "")
    if seen != str(before):
        raise ChangedError(f"reader {name!r} is at {before} now, and was at {seen} in the preview; look again")
    target = number_in(form, "target", -1)
    _target(path, str(target))
    move_reader(Path(path), name, target)
    _log.warning("%s moved reader %r of %s from %s to %d", who, name, path, before, target)
    return journal_address(path)


def dead_letter(context: Context, query: _Query) -> View:
    """Show a dead letter; to a viewer who may change something, with the choice to put it back or to delete it."""
    path, name = context.require_journal(query.get("path", "")), query.get("name", "")
    offset = number_in(query, "offset", 0)
    after = offset - 1 if offset else None
    letters = QueueLook(path, name).items("dead", after=after)
    found = next((item for item in letters if item.offset == offset), None)
    if found is None:
        raise MissingError(f"item {offset} has no dead letter, or it was put back or deleted", path=path)
    values = found._asdict() | {"path": path, "name": name, "cells": cells(found.message, _SHOWN_BYTES)}
    trail = [*trail_of(path), (_queue_address(path, name), name)]
    return View("change_dead_letter.html", f"Dead letter {offset}", values, trail)


def change_dead_letter(context: Context, form: _Query, who: str) -> str:
    """Put a dead letter back, or delete it; return the address to show next.

    Raises:
        ChangedError: the letter was put back or deleted before.
    """
    path, name = context.require_journal(form.get("path", "")), form.get("name", "")
    offset, action = number_in(form, "offset", 0), form.get("action", "")
    if action not in ("redrive", "delete"):
        raise ValueError(f"action must be redrive or delete, got {action[:80]!r}")
    with open_queue(path, name, create=False) as queue:
        done = queue.requeue(offset) is not None if action == "redrive" else queue.discard(offset)
    if not done:
        raise ChangedError(f"item {offset} has no dead letter, or it was put back or deleted before")
    what = "put back" if action == "redrive" else "deleted"
    _log.warning("%s %s the dead letter of item %d of queue %r of %s", who, what, offset, name, path)
    return _queue_address(path, name)


def pause(context: Context, query: _Query) -> View:
    """Show whether a queue or one of its schedules is paused, with the choice to pause or to resume it."""
    path, name = context.require_journal(query.get("path", "")), query.get("name", "")
    there, schedule = QueueLook(path, name).summary(), query.get("schedule", "")
    found = next((one for one in there.schedules if one.name == schedule), None)
    if schedule and found is None:
        raise MissingError(f"queue {name!r} has no schedule {schedule!r}", path=path)
    paused = there.stats.paused if found is None else found.paused
    values = {"path": path, "name": name, "stats": there.stats, "paused": paused, "schedule": schedule}
    what = f"schedule {schedule}" if schedule else f"queue {name}"
    trail = [*trail_of(path), (_queue_address(path, name), name)]
    return View("change_pause.html", f"{'Resume' if paused else 'Pause'} {what}", values, trail)


def change_pause(context: Context, form: _Query, who: str) -> str:
    """Pause or resume a queue or a schedule for all its workers; return the address to show next.

    Raises:
        ChangedError: it was paused or resumed since it was shown, or the schedule was removed.
    """
    path, name = context.require_journal(form.get("path", "")), form.get("name", "")
    action = form.get("action", "")
    if action not in ("pause", "resume"):
        raise ValueError(f"action must be pause or resume, got {action[:80]!r}")
    done = "paused" if action == "pause" else "resumed"
    schedule = form.get("schedule", "")
    what = f"schedule {schedule!r} of queue {name!r}" if schedule else f"queue {name!r}"
    with open_queue(path, name, create=False) as queue:
        before = {one.name: one.paused for one in queue.schedules} | {"": queue.stats().paused}
        if before.get(schedule) is not (action == "resume"):
            raise ChangedError(f"{what} was {done if schedule in before else 'removed'} before")
        if schedule:
            (queue.schedules.pause if action == "pause" else queue.schedules.resume)(schedule)
        else:
            (queue.pause if action == "pause" else queue.resume)()
    _log.warning("%s %s %s of %s", who, done, what, path)
    return _queue_address(path, name)


ChangeFunction = Callable[[Context, _Query, str], str]
"""A function of the context, of the fields of the form, and of the viewer's name."""
CHANGES: Final[Mapping[str, tuple[PageFunction, ChangeFunction]]] = {
    "change/reader": (reader, change_reader),
    "change/dead-letter": (dead_letter, change_dead_letter),
    "change/pause": (pause, change_pause),
}
"""The changes by address: what shows one, and what makes it."""
_SHOWN_BYTES: Final = 1 << 12


def _offset_of(path: str, name: str) -> int | None:
    check_reader(Directory(path, OS), name)
    for found in readers_of(Journal(path)):
        if found.name == name:
            return found.offset
    raise MissingError(f"unknown reader {name!r}", path=path)


def _target(path: str, place: str) -> int:
    try:
        return reset_target(Journal(path), place)
    except click.UsageError as error:
        raise ValueError(error.message) from None


def _queue_address(path: str, name: str) -> str:
    return f"/queue?path={address(path)}&name={address(name)}"
