"""What the functions of the pages share: the context they read from, the view that they return, and the templates.

Every value in a template is escaped; a name that a template misspells is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hub.page.sampler import Place, Sampler
from sej.cli.shared.units import human_duration, human_size, iso_time
from sej.codec.format import NO_TIMESTAMP
from sej.errors import JournalNotFoundError
from sej.journal.directory import Directory
from sej.system.disk import OS

if TYPE_CHECKING:
    from hub.wire.server import Server

LIVE_S: Final = 2.0
"""How often a browser asks for a page of one journal, queue or file."""
_MARKS: Final = {"ok": "✓", "note": "!", "problem": "✗"}


def address(text: object) -> str:
    """Return a text as a part of an address; a file name may have bytes that are not UTF-8."""
    return quote(str(text), safe="", errors="surrogateescape")


def when(timestamp: int | None) -> Markup:
    """Return a time element; the script shows it in the viewer's zone.

    Example:
        >>> when(1_500_000_000_000_000_000)
        Markup('<time datetime="2017-07-14T02:40:00.000000000Z">2017-07-14 02:40:00 UTC</time>')
    """
    if timestamp is None or timestamp == NO_TIMESTAMP:
        return Markup("–")
    text = iso_time(timestamp) or ""
    shown = datetime.fromtimestamp(timestamp // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(text, shown)


def _path(text: str) -> Markup:
    """Return a path with its directory in an element of its own; a narrow page breaks it after a slash."""
    *folders, name = text.split("/")
    return Markup('<span class="dir">{}</span>{}').format(Markup("/<wbr>").join([*folders, ""]), name)


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{human_duration(seconds)} ago"


def templates() -> Environment:
    """Load and compile the templates of this package."""
    found = Environment(
        loader=PackageLoader("hub.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        size=human_size,
        duration=human_duration,
        age=_age,
        rate=_rate,
        when=when,
        number="{:,}".format,
        path=_path,
    )
    found.globals.update(
        mark=_MARKS.get, address=address, queues_of=lambda path: sorted(Directory(path, OS).queue_names())
    )
    for name in found.list_templates():
        found.get_template(name)  # compiled now, so that the first page is as fast as the others
    return found


class MissingError(JournalNotFoundError):
    """The page has no such journal, queue, message or file."""


class Context(NamedTuple):
    """What all pages read from.

    Attributes:
        places: the paths of the command line.
        sampler: the samples.
        allow_changes: whether the page offers changes.
        hub: the server of the hub that serves this page, or None.
    """

    places: Sequence[Place]
    sampler: Sampler
    allow_changes: bool
    hub: Server | None = None

    def links(self) -> list[tuple[str, str, str]]:
        """Return what the navigation lists: kind, name and address."""
        page = {"text queue": "/text-queue?path="}
        parts = sorted(part for place in self.places for part in place.parts())
        return [(kind, name, page.get(kind, "/?in=") + address(name)) for kind, name in parts]

    def require_journal(self, path: str) -> str:
        """Return the path of a journal that the page may show.

        Raises:
            MissingError: it may not, or the journal does not exist.
        """
        if path not in self.sampler.round.samples or not self.sampler.may_show(path):
            raise MissingError("this page has no such journal", path=path or None)
        return path


def trail_of(path: str) -> list[tuple[str, str]]:
    """Return the pages above those of a journal: address and name."""
    return [("/", "Overview"), (journal_address(path), path)]


def journal_address(path: str) -> str:
    """Return the address of a journal's page."""
    return f"/journal?path={address(path)}"


class View(NamedTuple):
    """One page at one moment.

    Attributes:
        template: its template.
        title: the title.
        values: what the template needs in addition.
        trail: the pages above it: address and name.
        live: seconds after which a browser asks for it again and shows the elements that changed; 0: it does not.
    """

    template: str
    title: str
    values: Mapping[str, Any]
    trail: Sequence[tuple[str, str]] = ()
    live: float = 0


PageFunction = Callable[[Context, Mapping[str, str]], View]
"""A function of the context and of the query of the address."""


def number_in(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a number of the query, or the default if it is missing.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number, got {text[:80]!r}")
    return int(text)
