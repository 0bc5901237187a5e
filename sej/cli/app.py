"""The program: finds the subcommand that was asked for, loads that one alone, and turns errors into exit codes.

A subcommand of the core is a click command named in :data:`_CORE`. Other packages contribute through the entry-point
group ``sej.commands``: ``name = "module:app"`` with a click command or a ``typer.Typer``; they are looked for only
where the core has no such name. Packages that stand on the core's ground floor alone get what opens journals as the
context's object: :class:`sej.cli.journals.Journals`. A damaged journal, a lock, a missing directory
end in a line on standard error and an exit code, never in a traceback.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from sej.cli.exits import Exit, exit_of
from sej.cli.journals import Journals
from sej.errors import BadOffsetFileError, CorruptionError, SejError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["app", "run"]

_CORE: Final = {
    "count": "sej.cli.reading",
    "scan": "sej.cli.reading",
    "tail": "sej.cli.reading",
    "dump": "sej.cli.reading",
    "append": "sej.cli.writing",
    "follow": "sej.cli.readers",
    "offset": "sej.cli.readers",
    "reset": "sej.cli.readers",
    "timestamp": "sej.cli.places",
    "file": "sej.cli.places",
    "old": "sej.cli.places",
    "stat": "sej.cli.stat",
    "top": "sej.cli.top",
    "bench": "sej.cli.bench",
    "verify": "sej.cli.checking",
    "doctor": "sej.cli.doctor",
    "repair": "sej.cli.mending",
    "clean": "sej.cli.mending",
    "merge": "sej.cli.mending",
    "index": "sej.cli.mending",
    "queue": "sej.cli.queue",
}
"""Subcommand to the module that holds a click command of its name."""
_GROUP: Final = "sej.commands"
_EXTRAS: Final = {
    **dict.fromkeys(("bson", "msgpack"), "formats"),
    **dict.fromkeys(("google", "grpc", "grpc_health", "prometheus_client"), "hub"),
    **dict.fromkeys(("numpy", "pyarrow", "pyspark"), "spark"),
    "matplotlib": "demo",
}
"""What is not installed with the core, and the extra that has it."""


class _Commands(click.Group):
    """Knows its subcommands by name and loads each when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The core's, then what the installed packages contribute."""
        return [*_CORE, *sorted({*self.commands, *_contributed()} - set(_CORE))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, or None."""
        if cmd_name in _CORE:
            return _spelled_out(getattr(import_module(_CORE[cmd_name]), cmd_name))
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        found = _contributed().get(cmd_name)
        return None if found is None else _spelled_out(_loaded(cmd_name, found))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was asked for; of one that there is not, what may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), n=3)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence: click would cut it to what is left of a line."""
        rows = [(name, _sentence(self.get_command(ctx, name))) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and end errors in a line and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (SejError, OSError, ValueError, KeyboardInterrupt) as error:
            if (isinstance(error, OSError) and error.errno == errno.EPIPE) or _reader_left(error):
                _leave_quietly()
            if not isinstance(error, KeyboardInterrupt):
                click.echo(f"sej: {error}", err=True)
            if isinstance(error, CorruptionError | BadOffsetFileError):
                click.echo(f"sej: `sej doctor {_journal_of(error)}` looks at everything and says what to do", err=True)
            raise SystemExit(exit_of(error)) from None
        except click.Abort as error:  # a question was not answered
            if isinstance(error.__context__, KeyboardInterrupt):
                click.echo(err=True)
                raise SystemExit(Exit.INTERRUPTED) from None
            raise
        except ImportError as error:
            library = (error.name or "").partition(".")[0]
            way_out = f": pip install 'sej-journals[{_EXTRAS[library]}]'" if library in _EXTRAS else f" ({error})"
            click.echo(f"sej: this needs {library or 'what cannot be imported'}{way_out}", err=True)
            raise SystemExit(Exit.USAGE) from None


def _sentence(command: click.Command | None) -> str:
    """The first sentence of a command's help."""
    text = " ".join(((command and command.help) or "").split("\n\n")[0].replace("\b", "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def _spelled_out(command: click.Command) -> click.Command:
    """The command, whose subcommands are listed with their whole first sentences too."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            inner.short_help = _sentence(inner)
    return command


def _contributed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # costs more than the rest of a short command

    return {found.name: found for found in entry_points(group=_GROUP)}


def _loaded(name: str, found: EntryPoint) -> click.Command:
    """A contribution; one that cannot be loaded says so when it is called, and is in nobody's way."""
    try:
        return _command(name, found.load())
    except Exception as error:  # whatever a foreign package raises: `sej --help` shows the others
        reason = error

    def command(**_: object) -> None:
        if isinstance(reason, ImportError):
            raise reason
        raise SejError(f"the command {name!r} of {found.value} cannot be loaded: {reason!r}") from reason

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=command,
        params=[anything],
        help=f"Cannot be loaded: {reason!r}.",
        context_settings={"ignore_unknown_options": True},
    )


def _command(name: str, found: Any) -> click.Command:
    """A contribution as a click command; a ``typer.Typer`` brings a click of its own, so it runs as a program."""
    if isinstance(found, click.Command):
        found.name = name
        return found

    @click.command(
        name,
        help=found.info.help,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        from typer.main import get_command

        get_command(found)(args=list(arguments), prog_name=f"sej {name}")

    return command


def _journal_of(error: SejError) -> str:
    """The SEJ directory that an error's file stands in, for a shell; DIR where that cannot be told."""
    folder = os.path.dirname(error.path or "")
    inside = os.path.basename(folder) in ("gaps", "idx", "jnl", "ofs", "txn")
    return shlex.quote(os.path.dirname(folder) or ".") if inside else "DIR"


def _reader_left(error: BaseException) -> bool:
    pipes = sys.modules.get("sej.cli.pipes")  # who waits has loaded it
    return isinstance(error, KeyboardInterrupt) and pipes is not None and pipes.reader_left()


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line of this command: nobody wants to know which line of Python it came from."""
    click.echo(f"sej: {message}", err=True)


def _leave_quietly() -> NoReturn:
    """The reader of our output has seen enough: that is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(Exit.WELL)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        from sej import codec

        try:
            number = version("sej-journals")
        except PackageNotFoundError:
            number = "(not installed)"
        kind = {"c": "compiled (c)", "python": "pure (python)"}[codec.IMPLEMENTATION]
        click.echo(f"sej {number}, codec {kind}, Python {sys.version.split()[0]}")
        ctx.exit()


@click.group("sej", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the codec in use.",
)
@click.pass_context
def app(context: click.Context) -> None:
    """Journals that are plain files: look into them, append to them, verify them.

    Exit codes: 0 well, 1 found something wrong, 2 wrong usage, 3 locked or busy, 4 missing, 130 an interrupt.
    """
    context.obj = Journals()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    warnings.showwarning = _say_warning
    try:
        app.main(args=None if arguments is None else list(arguments), prog_name="sej")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(bool(leave.code))
