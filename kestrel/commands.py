"""``sej kestrel ls | dump | state | pack | export | import``: both of Kestrel's formats from a shell."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, get_args

import click

from kestrel import segmented
from kestrel.errors import Damage
from kestrel.files import READER_MAGIC, WRITER_MAGIC, files_of, formats_of, magic_of, queues_in
from kestrel.transfer import Expired, Moved, WriterLike
from kestrel.v2 import contents
from kestrel.v2.journal import read_journal
from kestrel.v2.replay import replay
from sej.cli.shared.command import DIRECTORY, JSON, PATH
from sej.message import Message, text_or_b64

_WRONG: Final = 1
_QUEUE: Final = click.argument("name", metavar="QUEUE")
_THREE: Final = click.option(
    "--segmented",
    "three",
    is_flag=True,
    help="The queue is one of Kestrel 3 (libkestrel). Only a queue without files needs this option.",
)
_EXPIRED: Final = click.option(
    "--expired",
    type=click.Choice(get_args(Expired)),
    default="mark",
    show_default=True,
    help="Items that have expired: mark them with the key expired=MS, or leave them out.",
)
_JOURNAL: Final = click.argument("journal", metavar="JOURNAL", type=PATH)


class JournalsLike(Protocol):
    """What the command ``sej`` passes, so that this package does not import journals."""

    def writer(self, path: str | os.PathLike[str]) -> AbstractContextManager[WriterLike]:
        """The writer of a journal."""

    def scanner(
        self, path: str | os.PathLike[str], offset: int | None = None
    ) -> AbstractContextManager[Iterable[Message]]:
        """The messages of a journal, from an offset on."""


@click.group("kestrel")
def app() -> None:
    """Kestrel's journals: look into them, pack them, move their items to SEJ and back.

    Stop Kestrel before a command that writes (import, pack): it ignores the locks of SEJ.
    """


@app.command("ls")
@DIRECTORY
@JSON
def list_(directory: Path, json: bool) -> None:
    """Print the name and the format of every queue of a directory. `sej kestrel state` prints what one holds.

    Example: sej kestrel ls spool
    """
    queues = queues_in(directory)
    if not queues:
        raise FileNotFoundError(f"{directory}: no queue has files in this directory; pass Kestrel's queue_path")
    for name in queues:
        three = True in formats_of(directory, name)
        _show({"queue": name, "format": "libkestrel" if three else "kestrel"}, json=json)


@app.command()
@click.argument("path", metavar="FILE", type=PATH)
@JSON
def dump(path: Path, json: bool) -> None:
    """Print what one file holds: a journal of Kestrel 2, a writer or a reader file of Kestrel 3.

    Good records are printed before damage is reported. The exit code is then 1.

    Example: sej kestrel dump spool/cars
    """
    if path.is_dir():
        raise FileNotFoundError(f"{path}: this is a directory; `sej kestrel ls` lists its queues")
    magic = magic_of(path)
    if magic == READER_MAGIC:
        _show(segmented.read_reader_file(path)._asdict(), json=json)
    elif magic == WRITER_MAGIC:
        for item in segmented.read_writer_file(path):
            _show(item._asdict(), json=json)
    else:
        for operation in read_journal(path):
            row = {name: value for name, value in operation._asdict().items() if value is not None}
            _show({"name": operation.name} | row, json=json)


@app.command()
@DIRECTORY
@_QUEUE
@_THREE
@JSON
def state(directory: Path, name: str, three: bool, json: bool) -> None:
    """Print the content of a queue: items, open transactions or readers. Exit code 1: damage.

    Example: sej kestrel state spool cars
    """
    damage: list[Damage]
    if _segmented(directory, name, three=three):
        loaded = segmented.load(directory, name)
        damage = loaded.damage
        for item in loaded.items:
            _show({"item": item.id} | item._asdict(), json=json)
        for reader, bookmark in loaded.readers.items():
            waiting = len(loaded.pending(reader))
            _show({"reader": reader, "head": bookmark.head, "pending": waiting}, json=json)
    else:
        found = replay(directory, name)
        damage = found.damage
        for xid, reserved in found.open_transactions.items():
            _show({"reserved": xid} | reserved._asdict(), json=json)
        for number, waiting_item in enumerate(found.items):
            _show({"item": number} | waiting_item._asdict(), json=json)
    _complain(damage)


@app.command()
@DIRECTORY
@_QUEUE
def pack(directory: Path, name: str) -> None:
    """Put all files of a Kestrel 2 queue into one, with the same items; damaged bytes are kept aside.

    Example: sej kestrel pack spool cars
    """
    if _segmented(directory, name, three=False):
        raise click.UsageError(f"the files of {name!r} are Kestrel 3's, which cannot be packed")
    _complain(contents.pack(directory, name))


@app.command()
@DIRECTORY
@_QUEUE
@_JOURNAL
@_THREE
@click.option("--reader", default="", help="Kestrel 3: export the items of this reader; default: the default reader.")
@_EXPIRED
@click.pass_obj
def export(
    journals: JournalsLike, directory: Path, name: str, journal: Path, three: bool, reader: str, expired: Expired
) -> None:
    """Append what a queue holds to a SEJ journal, read it back and compare.

    The queue's directory is only read. If a running Kestrel changes the queue meanwhile, the export fails.

    If it is cut short, repeat the command, which continues. The data is the value, the add time is the timestamp. An
    expiry is in the key: expiry=MS, or expired=MS if it has passed.

    Example: sej kestrel export spool cars cars
    """
    three = _segmented(directory, name, three=three)

    def read_back(offset: int) -> Iterable[Message]:
        with journals.scanner(journal, offset) as messages:
            yield from messages

    with journals.writer(journal) as writer:
        move = partial(segmented.export, reader=reader) if three else contents.export
        moved = move(directory, name, writer, expired=expired, read_back=read_back)
    _report(moved)


@app.command("import")
@DIRECTORY
@_QUEUE
@_JOURNAL
@_THREE
@click.option("--drop-keys", is_flag=True, help="Leave out keys and types, for which Kestrel has no place.")
@click.pass_obj
def import_(journals: JournalsLike, directory: Path, name: str, journal: Path, three: bool, drop_keys: bool) -> None:
    """Add the messages of a SEJ journal to a queue: all, or none.

    If it is cut short or fails, repeat the command. It adds nothing twice, unless the queue has changed meanwhile.

    Example: sej kestrel import spool cars cars
    """
    move = segmented.import_ if _segmented(directory, name, three=three, new=True) else contents.import_
    with journals.scanner(journal) as messages:
        _report(move(directory, name, messages, keys="drop" if drop_keys else "refuse"))


def _segmented(directory: Path, name: str, *, three: bool, new: bool = False) -> bool:
    """Whether a queue is Kestrel 3's, by how its files begin; as ``three`` says if no file has any bytes.

    Raises:
        FileNotFoundError: it has no file, and is not ``new``.
    """
    if not new and not files_of(directory, name):
        raise FileNotFoundError(f"{directory}: the directory holds no file of a queue {name!r}; check the name")
    formats = formats_of(directory, name) if directory.is_dir() else set()
    if three:  # damaged files too; but Kestrel 3 has no file of just this name
        if formats == {False} and (directory / name).is_file():
            raise click.UsageError(f"the files of {name!r} are Kestrel 2's: leave out --segmented")
        return True
    if len(formats) > 1:
        raise click.UsageError(
            f"{directory}: only some files of {name!r} look like Kestrel 3's; pass --segmented if all of them are"
        )
    return True in formats


def _show(row: dict[str, Any], *, json: bool) -> None:
    if not json:
        click.echo("\t".join(f"{name}={_text(value)}" for name, value in row.items()))
        return
    if row.get("data") is not None:
        row |= text_or_b64("data", row.pop("data"))
    click.echo(jsonlib.dumps({name: sorted(v) if isinstance(v, frozenset) else v for name, v in row.items()}))


def _text(value: Any) -> str:
    """A value in one line; bytes as Python writes them."""
    text = str(sorted(value)) if isinstance(value, frozenset) else str(value)
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _report(moved: Moved) -> None:
    click.echo(f"{moved.count} items, checksum {moved.checksum:08x}")
    _complain(moved.damage)


def _complain(damage: list[Damage]) -> None:
    for one in damage:
        click.echo(f"sej: {one.path}: position {one.position}: {one.reason}", err=True)
    if damage:
        raise SystemExit(_WRONG)
