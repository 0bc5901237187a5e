"""What every command needs: its exit codes, the types of its parameters, the terminal, and a program for each message.

Offsets, times, durations and sizes are parsed by :mod:`sej.cli.shared.text`.
"""

from __future__ import annotations

import errno
import json as jsonlib
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from sej.checks import parse_duration
from sej.cli.shared.text import parse_place, parse_size
from sej.errors import LockedError, NotAJournalError, OffsetTooSmallError, QueueNotFoundError, ResultGoneError, SejError

if TYPE_CHECKING:
    from rich.live import Live

_FREE_SPACE: Final = "free space on this disk; `sej clean` removes segments that no reader needs"
_NO_INODE: Final = "this disk has no inode for a new file; `sej clean` removes segments that no reader needs"
_WAYS_OUT: Final = MappingProxyType(
    {
        errno.ENOSPC: _FREE_SPACE,
        errno.EDQUOT: _FREE_SPACE,
        errno.EMFILE: "raise the limit of open files with `ulimit -n`",
        errno.EROFS: "mount it for writing; until then only commands that read work",
    }
)


class Exit(IntEnum):
    """Exit codes that scripts can rely on; 130 means an interrupt."""

    WELL = 0
    WRONG = 1
    """A problem was found, or the command failed."""
    USAGE = 2
    BUSY = 3
    """Another process holds a lock."""
    MISSING = 4
    """The journal does not exist, or the requested messages were deleted."""
    INTERRUPTED = 130


_BY_ERROR: Final[Mapping[Exit, tuple[type[BaseException], ...]]] = MappingProxyType(
    {
        Exit.BUSY: (LockedError,),
        Exit.MISSING: (NotAJournalError, OffsetTooSmallError, FileNotFoundError, QueueNotFoundError, ResultGoneError),
        Exit.USAGE: (ValueError,),
        Exit.INTERRUPTED: (KeyboardInterrupt,),
    }
)


def exit_of(error: BaseException) -> Exit:
    """Return the exit code for an error.

    Example:
        >>> exit_of(LockedError("held")), exit_of(OSError("disk full"))
        (<Exit.BUSY: 3>, <Exit.WRONG: 1>)
    """
    return next((code for code, kinds in _BY_ERROR.items() if isinstance(error, kinds)), Exit.WRONG)


def refuse(text: str, code: Exit = Exit.MISSING) -> NoReturn:
    """Print why a command ends here, and end it."""
    click.echo(f"sej: {text}", err=True)
    raise SystemExit(code)


def print_row(row: Mapping[str, Any], text: object, json: bool) -> None:
    """Print a row: as a JSON object, or as the text for people."""
    click.echo(jsonlib.dumps(row) if json else text)


def text_of(error: BaseException) -> str:
    """Describe an error; a plain error of the system with its path first, as other programs do."""
    if not isinstance(error, OSError) or isinstance(error, SejError) or not error.strerror:
        return str(error)
    if not isinstance(error.filename, str | bytes):
        return error.strerror
    path = os.fsdecode(error.filename)
    folder = os.path.dirname(path) or "."
    if isinstance(error, PermissionError):
        return _denied(path, folder)
    if isinstance(error, FileNotFoundError) and not os.path.exists(folder):
        return f"{folder}: this directory does not exist; create it first"
    from sej.system.disk import OS, large_file_advice

    way_out = _WAYS_OUT.get(error.errno or 0)
    if error.errno == errno.EFBIG:
        way_out = large_file_advice()
    elif way_out is _FREE_SPACE and os.path.isdir(folder) and not OS.free_files(folder):
        way_out = _NO_INODE
    return f"{path}: {error.strerror}" + (f"; {way_out}" if way_out else "")


def _denied(path: str, folder: str) -> str:
    """Describe an access that the system refused: the path, and the user that owns it or its folder."""
    exists = os.path.exists(path)  # False too if this user may not look into the folder
    readable = os.access(path, os.R_OK) if exists else os.access(folder, os.X_OK)
    refused = f"{path}: this user may not {'write' if readable else 'read'} it"
    try:
        owner = os.stat(path if exists else folder).st_uid
        if exists and owner != os.geteuid() == os.stat(folder).st_uid:
            user = _user(os.geteuid())
            return f"{refused}; it belongs to {_user(owner)}, its directory to {user}: run `chown {user}` on it as root"
    except OSError:
        return f"{refused}; run as the user that owns the directory"
    return f"{refused}; run as its owner, {_user(owner)}"


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user with id {number}"


Function = Callable[..., None]
"""The function of a command, which decorators of click get and return."""


class FilePath(click.Path):
    """A path that is not empty: an empty one, as of a variable that is not set, would mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse an empty one."""
        if value == "":
            self.fail(
                "expected the path of a file or directory ('.' is the current one), got an empty path", param, ctx
            )
        return super().convert(value, param, ctx)


class IntRange(click.IntRange):
    """A whole number from a range, named as such in errors: click's would say "not a valid integer range"."""

    name = "integer"


class _Parsed(click.ParamType[Any]):
    """A parameter that a function of :mod:`sej.cli.shared.text` parses."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the argument; a default is already parsed."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


def _parse_age(text: str) -> float:
    """Return the age after which something is removed. A number alone may be meant as days, so it needs a unit."""
    seconds = parse_duration(text)
    if seconds and not text.strip()[-1].isalpha():
        raise ValueError(f"{text!r} has no unit; expected {text}s for seconds, {text}h for hours or {text}d for days")
    return seconds


PATH: Final = FilePath(path_type=Path, readable=False)
PLACE: Final = _Parsed("offset or time", lambda text: parse_place(text, time.time_ns()))
DURATION: Final = _Parsed("duration", parse_duration)
AGE: Final = _Parsed("age", _parse_age)
SIZE: Final = _Parsed("size", parse_size)
BYTES: Final = _Parsed("text", os.fsencode)
"""The bytes of the argument, whether or not they are UTF-8."""


DIRECTORY: Final = click.argument("directory", metavar="DIR", type=PATH)
JSON: Final = click.option("--json", is_flag=True, help="One JSON object per line.")


class ProgramCommand(click.Command):
    """A command that takes a program and its arguments after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if an option is unknown, explain where the options of the program belong."""
        separated = "--" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if separated:
                raise
            raise click.UsageError(
                f"{error.format_message()} Put the program after --, as in `{ctx.command_path} ... -- PROGRAM -x`.", ctx
            ) from None


def require_program(command: Sequence[str], *, json: bool = False) -> None:
    """Check that the program exists before any message is taken for it; an empty command passes.

    Raises:
        click.UsageError: the program does not exist, or ``--json`` was given, which is for messages that are printed.
    """
    if command and json:
        raise click.UsageError(
            f"--json is for printing; leave it out, because {command[0]!r} gets the text as its input"
        )
    import shutil

    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"program {command[0]!r} not found, or not executable")


def run_program(command: Sequence[str], value: bytes, key: bytes | None = None, **variables: object) -> str | None:
    """Run a program with a value as its input; return how it failed, or None.

    Its environment has the variables, as ``SEJ_`` and their names, and ``SEJ_KEY`` unless the key has a zero byte.

    Example:
        >>> run_program(["sh", "-c", "exit $SEJ_CODE"], b"", code=1), run_program(["sh", "-c", "kill -TERM $$"], b"")
        ('exit code 1', 'killed by SIGTERM')
    """
    import subprocess

    environment = {**os.environ, **{f"SEJ_{name.upper()}": str(what) for name, what in variables.items()}}
    if key is not None and b"\0" not in key:
        environment["SEJ_KEY"] = os.fsdecode(key)
    code = subprocess.run(command, input=value, env=environment, check=False).returncode
    if code >= 0:
        return f"exit code {code}" if code else None
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"


_KEYS: Final = 64
_INTERVAL_MIN_S: Final = 0.05
CHROME_LINES: Final = 6
"""Lines that a table which fills the screen takes in addition to its rows."""
_left: Final = threading.Event()
_GRACE_S: Final = 0.2
"""A write that is under way ends the command itself: an interrupt would only hit its clean-up."""


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Read keys as they are pressed, without echo, until the block ends."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def screen() -> Iterator[Live]:
    """Fill the terminal until the block ends; rich honours NO_COLOR."""
    from rich.live import Live

    with quiet_keys(), Live(screen=True, auto_refresh=False) as live:
        yield live


def wait(seconds: float) -> bool:
    """Wait for the next sample, at least 0.05 seconds; return False if q was pressed in a terminal."""
    seconds = max(seconds, _INTERVAL_MIN_S)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        time.sleep(seconds)
        return True
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), _KEYS)
            if not pressed or b"q" in pressed:
                return False
    return True


@contextmanager
def progress_bar(what: str, *, size: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar if standard error is a terminal: the block gets a function of (done, total), None if unknown.

    Args:
        what: the label of the bar.
        size: True if it counts bytes.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress as bars
    from rich.console import Console

    many = bars.DownloadColumn(binary_units=True) if size else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), many, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield show


@contextmanager
def until_reader_leaves(ask: Callable[[], object] | None = None) -> Iterator[None]:
    """End a wait when the reader of standard output has closed the pipe, as the next write would.

    Without it ``sej tail -f DIR | head -1`` would wait for one more message after ``head`` has ended. The wait ends by
    an interrupt; :func:`reader_left` says whether the pipe caused it. If standard output is not a pipe, nothing is
    done. Only the main thread may use it.

    Args:
        ask: called in another thread instead of the interrupt, for a wait that checks for a reason to stop.
    """
    try:
        fd = sys.stdout.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):
        yield
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, 0)
        poll.poll()  # no event is requested, so only an error or a hang-up ends it
        if not over.wait(_GRACE_S):
            _left.set()
            if ask is None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                ask()

    ignored = ask is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # started in the background by a shell
    if ignored:
        signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(*_: object) -> None:
    """Handle SIGINT in a process that ignores it, except for the closed pipe."""
    if _left.is_set():
        raise KeyboardInterrupt


def reader_left() -> bool:
    """Return whether an interrupt came because the reader of standard output has closed the pipe."""
    return _left.is_set()
