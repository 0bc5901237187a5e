"""The program: finds the requested subcommand, loads only that one, and turns errors into exit codes.

A subcommand is a click command named in :data:`_CORE` or :data:`_PACKAGES`. Other distributions contribute through the
entry-point group ``sej.commands``: ``name = "module:app"`` with a click command. They are looked up only if we have no
command of that name, because that takes a quarter of a short command. Packages that may not
import the core's upper layers open journals through the context's object, :class:`Journals`. A damaged journal, a held
lock or a missing directory ends in one line on standard error and an exit code, never in a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from sej.cli.shared.command import Exit, exit_of, reader_left, refuse, text_of
from sej.errors import BadOffsetFileError, CorruptionError, OffsetBeyondEndError, SejError

if TYPE_CHECKING:
    from sej.reading.scanner import Scanner
    from sej.writing.writer import Writer

_CORE: Final = {
    name: module
    for module, names in {
        "reading": "count scan tail dump timestamp file old follow offset reset",
        "maintenance": "append archive verify repair clean index",
        "stat": "stat top doctor",
        "bench": "bench",
        "queue": "queue",
        "worker": "worker relay forward",
    }.items()
    for name in names.split()
}
"""Maps each subcommand to the module that holds a click command of its name, in ``sej.cli``."""
_PACKAGES: Final = {
    "export": "pipeline.tables.commands:export",
    "hub": "hub.cli:app",
    "kestrel": "kestrel.commands:app",
    "shard": "shard.cli:app",
    "schema": "pipeline.schemas:app",
    "ship": "pipeline.tables.commands:ship",
    "spark": "pipeline.cli:app",
    "sql": "pipeline.tables.commands:sql",
    "tq": "textqueue.commands:app",
    "ui": "hub.cli:ui",
}
"""Where the subcommands of the packages above the core are."""
_HEADINGS: Final = {
    "Messages": ("append", "tail", "scan", "follow", "count"),
    "Queues": ("queue", "worker", "relay", "tq"),
    "Look": ("stat", "top", "doctor", "ui"),
    "Readers": ("offset", "reset"),
    "Change the files": ("clean", "archive", "repair", "index"),
    "Many machines": ("hub", "shard", "forward"),
    "Tables": ("sql", "schema", "export", "ship", "spark"),
    "Rarely needed": ("verify", "dump", "file", "timestamp", "old", "bench", "kestrel"),
}
"""How the help lists the subcommands; those of other distributions follow."""
_GROUP: Final = "sej.commands"
_DOCTOR_HELPS: Final = (BadOffsetFileError, CorruptionError, OffsetBeyondEndError)
_EXTRAS: Final = {
    **dict.fromkeys(("bson", "msgpack"), "formats"),
    **dict.fromkeys(("google", "grpc", "grpc_health", "prometheus_client"), "hub"),
    **dict.fromkeys(("numpy", "pyarrow"), "tables"),
    **{name: name for name in ("deltalake", "obstore", "pandas", "polars")},
    "pyspark": "spark",
    "duckdb": "sql",
    **dict.fromkeys(("pyiceberg", "sqlalchemy"), "iceberg"),
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "ui"),
    **dict.fromkeys(("lsprotocol", "pygls"), "lsp"),
    "matplotlib": "demo",
}
"""Maps each library that the core does not install to the extra that does."""


class Journals:
    """Opens journals for commands of packages that may not import the core's upper layers: the context's object."""

    def writer(self, path: str | os.PathLike[str]) -> Writer:
        """Open the writer of a journal; the journal is created if it is missing."""
        from sej.writing.writer import Writer

        return Writer(path)

    def scanner(self, path: str | os.PathLike[str], offset: int | None = None) -> Scanner:
        """Scan the existing messages from an offset on, by default from the first."""
        from sej.reading.scanner import Scanner

        return Scanner(path) if offset is None else Scanner(path, offset)


@contextmanager
def _errors_as_exits() -> Iterator[None]:
    """Turn an error of the block into one line and an exit code."""
    try:
        yield
    except (SejError, OSError, ValueError, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if (interrupted and reader_left()) or getattr(error, "errno", None) == errno.EPIPE:
            _leave_quietly()
        if not interrupted:
            _report(error)
        journal = _journal_of(error) if isinstance(error, _DOCTOR_HELPS) else None
        if journal is not None:
            click.echo(f"sej: run `sej doctor {journal}` for the whole state and what to do", err=True)
        raise SystemExit(exit_of(error)) from None
    except click.Abort as error:  # a question was refused or not answered
        reason = error.__context__
        if isinstance(reason, KeyboardInterrupt | EOFError):
            click.echo(err=True)  # the cursor is after the question
        if isinstance(reason, KeyboardInterrupt):
            raise SystemExit(Exit.INTERRUPTED) from None
        unanswered = "no terminal and no answer: nothing was changed; use --yes"
        refuse(unanswered if isinstance(reason, EOFError) else "nothing was changed", Exit.WRONG)
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        way_out = f": pip install 'sej-journals[{_EXTRAS[library]}]'" if library in _EXTRAS else f" ({error})"
        refuse(f"this needs {library or 'a library that cannot be imported'}{way_out}", Exit.USAGE)


class _Commands(click.Group):
    """A group that knows its subcommands by name and loads each when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the core's commands, then those of the installed packages."""
        return [*_CORE, *sorted({*self.commands, *_contributed()} - set(_CORE))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None."""
        if cmd_name in _CORE:
            return _spelled_out(getattr(import_module(f"sej.cli.{_CORE[cmd_name]}"), cmd_name))
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        found = _PACKAGES.get(cmd_name) or _contributed().get(cmd_name)
        return None if found is None else _spelled_out(_loaded(cmd_name, found))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the requested command; if none exists, suggest similar names, also of commands that are not loaded."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand:
            raise click.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command under its heading with its whole first sentence; click would cut it to the line width."""
        listed = {name for names in _HEADINGS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in listed]
        for heading, names in (*_HEADINGS.items(), ("Of other packages", others)):
            rows = [(name, _sentence(found)) for name in names if (found := self.get_command(ctx, name))]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``sej help COMMAND`` for ``sej COMMAND --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    @_errors_as_exits()
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options of the program; ``--help``, which loads every command, and ``--version`` print here."""
        return super().make_context(*args, **extra)

    @_errors_as_exits()
    def invoke(self, ctx: click.Context) -> None:
        """Run the command."""
        super().invoke(ctx)
        sys.stdout.flush()


def _sentence(command: click.Command | None) -> str:
    """Return the first sentence of a command's help."""
    text = " ".join(((command and command.help) or "").split("\n\n")[0].replace("\b", "").split())
    return text and text.partition(". ")[0].rstrip(".") + "."


def _spelled_out(command: click.Command) -> click.Command:
    """Let a group list its own subcommands with their whole first sentences too."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            inner.short_help = _sentence(inner)
    return command


def _contributed() -> dict[str, str]:
    """Return where the commands of other distributions are, by name, and those of ours, which they cannot replace."""
    from importlib.metadata import entry_points  # too slow to import for a short command

    return {found.name: found.value for found in entry_points(group=_GROUP)} | _PACKAGES


def _loaded(name: str, value: str) -> click.Command:
    """Load a contributed command; if that fails, return one that reports the failure when it is called."""
    try:
        module, _, attribute = value.partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        found.name = name
        return found
    except Exception as error:  # any package may raise anything; `sej --help` must still list the others
        reason = error

    def command(**_: object) -> None:
        if isinstance(reason, ImportError):
            raise reason
        raise SejError(
            f"the command {name!r} of {value} cannot be loaded: {reason!r}; reinstall its package"
        ) from reason

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=command,
        params=[anything],
        help=f"Cannot be loaded: {reason!r}.",
        context_settings={"ignore_unknown_options": True},
    )


def _report(error: BaseException) -> None:
    click.echo(f"sej: {_shown(text_of(error), error)}", err=True)


def _journal_of(error: SejError) -> str | None:
    """Return the SEJ directory of the file that an error names, quoted for a shell; None if it is not in one."""
    folder = os.path.dirname(error.path or "")
    inside = os.path.basename(folder) in ("gaps", "idx", "jnl", "ofs", "txn")
    return shlex.quote(os.path.dirname(folder) or ".") if inside else None


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as a line of this command, without the Python source line."""
    click.echo(f"sej: {_shown(str(message), message)}", err=True)


def _shown(text: str, error: object) -> str:
    """Return the text of an error, which may have names from a file, for the terminal; it may have several lines."""
    from sej.cli.shared.text import shown  # only an error needs it

    path = getattr(error, "path", None) or getattr(error, "filename", None)
    if isinstance(path, str):
        text = text.replace(path, shown(path))
    return "\n".join(map(shown, text.split("\n")))


def _leave_quietly() -> NoReturn:
    """End without an error: the reader of our output has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(Exit.WELL)


def _settle_streams() -> None:
    """Open the standard streams that the caller has closed, and let standard output print every path.

    Otherwise a file of the journal would get the number of such a stream. An input that was closed is empty. Writing to
    an output that was closed fails, so that nothing counts as printed.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), closefd=False)
    if sys.stdout is None:
        raw = os.fdopen(os.open(os.devnull, os.O_RDONLY), "wb", buffering=0, closefd=False)
        sys.stdout = io.TextIOWrapper(raw, write_through=True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # a path may have bytes that are not UTF-8


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from sej import __version__, codec

        kind = {"c": "compiled (c)", "python": "pure (python)"}[codec.IMPLEMENTATION]
        click.echo(f"sej {__version__}, codec {kind}, Python {sys.version.split()[0]}")
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
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Write log records as text or JSON.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Write log records from this level on to standard error; warning, if only --log-format is given.",
)
@click.pass_context
def app(context: click.Context, log_format: str | None, log_level: str | None) -> None:
    """Inspect, append to and verify journals that are plain files.

    Exit codes: 0 success, 1 a problem was found, 2 wrong usage, 3 locked or busy, 4 not found, 130 interrupted, 143
    ended by SIGTERM.

    Completion for bash: eval "$(_SEJ_COMPLETE=bash_source sej)"; also zsh_source, fish_source.
    """
    context.obj = Journals()
    if log_format is not None or log_level is not None:
        _write_logs(log_format or "text", log_level or "warning")


def _write_logs(form: str, level: str) -> None:
    """Write log records from a level on to standard error: as text, or one JSON object per line."""
    import json
    import logging  # slow to import for a short command

    from sej.cli.shared.text import iso_time

    class Lines(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            row = {
                "time": iso_time(int(record.created * 1e9) // 1000 * 1000),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
            }
            error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
            if form == "json":
                return json.dumps(row | error, ensure_ascii=False)
            return "\n".join(["{time} {level} {logger}: {message}".format(**row), *error.values()])

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    _settle_streams()
    if sys.flags.optimize > 1 and {"-h", "--help"} & set(sys.argv if arguments is None else arguments):
        click.echo("sej: `python -OO` removes the descriptions of the commands; run `sej` without -OO", err=True)
    warnings.showwarning = _say_warning
    try:
        # Standalone, click would exit with 1 and "Aborted!" after an interrupt outside the command's own function.
        code = app.main(None if arguments is None else list(arguments), prog_name="sej", standalone_mode=False)
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(bool(leave.code))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return Exit.INTERRUPTED
    return code or Exit.WELL
