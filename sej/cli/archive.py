"""``sej archive``: old messages in a directory or in an object store, and back."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Any

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.output import counted
from sej.cli.shared.parameters import DIRECTORY, JSON, PATH, SIZE
from sej.cli.shared.units import human_size

_JOURNALS = click.argument("journals", metavar="DIR...", type=PATH, nargs=-1, required=True)


class _Moving(click.Group):
    """Takes ``sej archive --to TARGET DIR`` for its subcommand ``move``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the name of the subcommand if there is none."""
        named = not args or args[0] in (*self.commands, *self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if named else ["move", *args])


@click.group(cls=_Moving)
def archive() -> None:
    """Move old messages to a directory or an object store, where scanners, tables and Spark still read them.

    `sej archive --to TARGET DIR` is short for `sej archive move`.

    Example: sej archive move --to /archive orders
    """


@archive.command()
@_JOURNALS
@click.option("--to", help="A directory, or a URL as s3://bucket/path, gs:// or az://; default: as before.")
@click.option(
    "--keep", "keep_bytes", type=SIZE, default="0", show_default=True, help="Leave so many bytes in the journal."
)
@click.option("--accept-gaps", is_flag=True, help="Record messages that were deleted before as a gap.")
@click.option("--compress", is_flag=True, help="Compress what is moved with gzip; readers use more time.")
def move(journals: tuple[Path, ...], to: str | None, **options: Any) -> None:
    """Move the messages of complete segments; those that a reader needs stay in the journal too.

    Each run moves what is new. `sej clean` waits for the reader `cold-tier`, which this command is. The Go SEJ
    does not read what was moved.

    Example: sej archive move --to s3://bucket/journals --keep 1G orders
    """
    from sej.reading.archiving import archive as run

    for directory in journals:
        moved = run(directory, to, **options)
        removed = counted(len(moved.removed), "segment")
        click.echo(f"{directory}: {counted(moved.messages, 'message')} moved, {removed} removed here")


@archive.command("list")
@DIRECTORY
@JSON
def list_(directory: Path, json: bool) -> None:
    """List what was moved: the first offset, the number of messages, the size, and the object.

    Example: sej archive list orders
    """
    from sej.reading.archiving import objects

    for each in objects(directory):
        listed = each.listed
        if json:
            click.echo(jsonlib.dumps({**listed._asdict(), "address": each.address}))
        else:
            count = listed.next_offset - listed.first_offset
            click.echo(f"{listed.first_offset:>20} {count:>12} {human_size(listed.stored_size):>10}  {each.address}")


@archive.command()
@DIRECTORY
@JSON
def verify(directory: Path, json: bool) -> None:
    """Read every object and compare its size and its CRC32C. Exit code 1: some are missing or wrong, each in a line.

    Example: sej archive verify orders
    """
    from sej.reading.archiving import problems

    found = False
    for error in problems(directory):
        found = True
        row = {"address": error.path, "offset": error.offset, "reason": error.reason}
        click.echo(jsonlib.dumps(row) if json else str(error))
    if found:
        raise SystemExit(Exit.WRONG)


@archive.command()
@DIRECTORY
def restore(directory: Path) -> None:
    """Copy all messages back into the journal. The objects stay.

    Example: sej archive restore orders
    """
    from sej.reading.archiving import restore as run

    click.echo(f"{directory}: {counted(len(run(directory)), 'segment')} restored")
