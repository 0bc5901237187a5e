"""What the functions of the pages share: the context they read from, and the view that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from markupsafe import Markup

from hub.counters import Counts
from hub.page.places import Place
from hub.page.rendering import Renderer
from hub.page.sampler import Sampler
from sej.errors import JournalNotFoundError


class MissingError(JournalNotFoundError):
    """The page has no such journal, queue, message or file."""


class Context(NamedTuple):
    """What all pages read from.

    Attributes:
        places: the paths of the command line.
        sampler: the samples.
        render: the templates.
        allow_changes: whether the page offers changes.
        counts: the counts of the hub that serves this page, or None.
    """

    places: Sequence[Place]
    sampler: Sampler
    render: Renderer
    allow_changes: bool
    counts: Callable[[], Counts] | None = None

    def require_journal(self, path: str) -> str:
        """Return the path of a journal that the page may show.

        Raises:
            MissingError: it may not, or the journal does not exist.
        """
        if path not in self.sampler.round.samples or not self.sampler.may_show(path):
            raise MissingError("this page has no such journal", path=path or None)
        return path


class View(NamedTuple):
    """One page at one moment.

    Attributes:
        template: the template of the whole page.
        title: the title.
        parts: the HTML of the elements that change, by id.
        values: what the template needs in addition.
        trail: the pages above it: address and name.
    """

    template: str
    title: str
    parts: Mapping[str, Markup]
    values: Mapping[str, Any] = {}
    trail: Sequence[tuple[str, str]] = ()


PageFunction = Callable[[Context, Mapping[str, str]], View]
"""A function of the context and of the query of the address."""


def element(kind: str, name: str) -> str:
    """Return the id of an element: the same for the same name, and valid in HTML."""
    return f"{kind}-{blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=6).hexdigest()}"


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
