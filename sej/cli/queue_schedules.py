"""``sej queue schedule add | list | pause | resume | remove``: items that are put at given times."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from typing import Any

import click

from sej.cli.queue_items import HEADERS, KEY, Place, placed_command
from sej.cli.shared.exits import refuse
from sej.cli.shared.options import JSON
from sej.cli.shared.output import shown, text_or_b64
from sej.cli.shared.parameters import AGE, BYTES, IntRange
from sej.cli.shared.units import iso_time
from sej.queue.interface.queue import Schedules
from sej.queue.interface.schedules import MISSED


@click.group
def schedule() -> None:
    """Put items at given times: any `sej worker` or `get` of the queue puts an item when its time comes."""


_NAME = click.argument("schedule", metavar="SCHEDULE")


@schedule.command("list")
@placed_command
@JSON
def list_(place: Place, json: bool) -> None:
    """List the schedules: name, times, zone, next time or `paused`, and value.

    Example: sej queue schedule list mails
    """
    place.require()
    from sej.queue.listing import QueueLook  # here, because `sej --help` loads this module too

    for each in QueueLook(place.path, place.name).schedules():
        times = each.cron or f"every {each.every_s:g}s"
        if json:
            row: dict[str, Any] = {**each._asdict(), **text_or_b64("key", each.key), **text_or_b64("value", each.value)}
            click.echo(jsonlib.dumps({"next_at_ns" if name == "next_at" else name: what for name, what in row.items()}))
        else:
            at = "paused" if each.paused else "-" if each.next_at is None else iso_time(each.next_at)
            cells = each.name, times, each.timezone or "-", str(at), each.value.decode(errors="backslashreplace")
            click.echo("\t".join(shown(cell) for cell in cells))


@schedule.command
@placed_command
@_NAME
@click.argument("value", type=BYTES)
@click.option("--every", type=AGE, help="Put an item each 15m, for example; the first one after that time.")
@click.option("--cron", help="Minute, hour, day, month and weekday, as in '0 3 * * mon-fri', or a name as @daily.")
@click.option("--timezone", help="The zone of --cron, as in Europe/Berlin.  [default: UTC]")
@click.option("--missed", type=click.Choice(MISSED), default="one", show_default=True,
              help="If several times have passed: one item, one for each, or only one of the last minute.")  # fmt: skip
@KEY
@click.option("--priority", type=IntRange(-3, 3), default=0, help="Higher priorities are delivered first.")
@HEADERS
def add(place: Place, schedule: str, value: bytes, **options: Any) -> None:
    """Add or change a schedule; prints its next time.

    Example: sej queue schedule add mails nightly 'send the report' --cron '0 3 * * mon-fri'
    """
    with place.open() as opened:
        click.echo(iso_time(opened.put(value, schedule=schedule, **options)))


def _changing(word: str, change: Callable[[Schedules, str], bool], what: str) -> None:
    text = f"{what} Exit code 4: there is none of this name.\n\nExample: sej queue schedule {word} mails nightly"

    @schedule.command(word, help=text)
    @placed_command
    @_NAME
    def changed(place: Place, schedule: str) -> None:
        with place.open_existing(create=False) as opened:
            if not change(opened.schedules, schedule):
                refuse(f"{place.path}: no schedule {schedule!r}; `sej queue schedule list` prints them")


_changing("pause", Schedules.pause, "Let the times of a schedule pass without items.")
_changing("resume", Schedules.resume, "Put items of a schedule again, from its next time on.")
_changing("remove", Schedules.remove, "Remove a schedule; items that were put stay.")
