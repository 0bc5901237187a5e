"""Templates to HTML. Every value is escaped; a name that a template misspells is an error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hub.page.history import HEIGHT, WIDTH, points
from sej.cli.shared.units import human_duration, human_size, iso_time
from sej.codec.format import NO_TIMESTAMP

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
    try:
        shown = datetime.fromtimestamp(timestamp // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return Markup("{}").format(text)
    return Markup('<time datetime="{}">{}</time>').format(text, shown)


def _line(values: list[float], label: str) -> Markup:
    """Return a drawing of numbers with a text for readers of the screen."""
    found = points(values)
    if not found:
        return Markup('<span class="quiet">–</span>')
    return Markup(
        '<svg class="line" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}"/></svg>'
    ).format(WIDTH, HEIGHT, label, found)


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{human_duration(seconds)} ago"


def _number(number: float) -> str:
    return f"{number:,}"


class Renderer:
    """Renders the templates of this package."""

    def __init__(self) -> None:
        """Load and compile them."""
        self._environment = Environment(
            loader=PackageLoader("hub.page", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            size=human_size,
            duration=human_duration,
            age=_age,
            rate=_rate,
            when=when,
            number=lambda number: f"{number:,}",
        )
        self._environment.globals.update(line=_line, mark=_MARKS.get, address=address)
        for name in self._environment.list_templates():
            self._environment.get_template(name)  # compiled now, so that the first page is as fast as the others

    def __call__(self, template: str, values: Mapping[str, Any]) -> Markup:
        """Render a template."""
        return Markup(self._environment.get_template(template).render(values))
