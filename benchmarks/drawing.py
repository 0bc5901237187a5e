"""Draw figures as SVG: ``python -m benchmarks.drawing JSON FOLDER``.

The points of section growth become ``growth.svg``, small multiples; each other section becomes ``speed-SECTION.svg``:
one bar a row, which begins at the row's target and ends at its figure, to the right if it is better.
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.growth import exponent

COLUMNS, WIDTH, HEIGHT, PLOT_WIDTH, PLOT_HEIGHT = 4, 235, 165, 190, 90
MIDDLE, LINE, DOUBLE, ENDS = 600, 20, 40, 3
"""Of a section's picture: the targets' place, a row's height, the length of a factor of two, and how many fit."""
STYLE = (
    "text{fill:#1f2328;font:12px system-ui,sans-serif}.small{font-size:10px;fill:#59636e}"
    ".frame{fill:none;stroke:#afb8c1}.line{fill:none;stroke:#0969da;stroke-width:2}.head{fill:#0969da}.missed{fill:#bc4c00}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.frame{stroke:#3d444d}"
    ".line{stroke:#4493f8}.head{fill:#4493f8}.missed{fill:#db6d28}}"
)


def draw_growth(lines: dict[str, dict[str, float]], about: str) -> str:
    """One plot for each line, both axes logarithmic, with its exponent."""
    plots = []
    for number, (name, points) in enumerate(lines.items()):
        costs = {int(size): taken for size, taken in points.items()}
        place = f"translate({number % COLUMNS * WIDTH + 8} {number // COLUMNS * HEIGHT + 8})"
        plots.append(f'<g transform="{place}">{_plot(name, costs)}</g>')
    title = f"CPU seconds over the size, both logarithmic, and the exponent of the larger half. {about}"
    return _picture("growth", title, plots, COLUMNS * WIDTH + 8, -(-len(plots) // COLUMNS) * HEIGHT)


def draw_section(section: str, rows: list[dict[str, Any]], about: str) -> str:
    """One bar for each row that has a target, on a logarithmic axis."""
    compared = [found for found in rows if found["target"]]
    bars = [_bar(found, number * LINE + 8) for number, found in enumerate(compared)]
    height = len(bars) * LINE + 8
    bars.append(f'<line class="frame" x1="{MIDDLE}" y1="4" x2="{MIDDLE}" y2="{height}"/>')
    title = f"Section {section}: right of the line is better than the target, cut at eight times. {about}"
    return _picture(f"speed-{section}", title, bars, MIDDLE + ENDS * DOUBLE + 240, height)


def _picture(name: str, title: str, parts: list[str], width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 24}" role="img"'
        f' aria-labelledby="{name}-title">\n<title id="{name}-title">{escape(title)}</title>\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + f'\n<text class="small" x="8" y="{height + 16}">{escape(title)}</text>\n</svg>\n'
    )


def _bar(found: dict[str, Any], top: int) -> str:
    relation, _, target = found["target"].partition(" ")
    times = found["ratio"] / float(target)
    better = math.log2(times if relation == ">=" else 1 / times)
    long = max(-ENDS, min(ENDS, better)) * DOUBLE
    kind, left, right = ("head" if found["ok"] else "missed"), MIDDLE + min(long, 0.0), MIDDLE + ENDS * DOUBLE
    return (
        f'<text x="8" y="{top + 12}">{escape(found["name"])}</text>'
        f'<rect class="{kind}" x="{left:.1f}" y="{top + 3}" width="{max(abs(long), 2.0):.1f}" height="11"/>'
        f'<text x="{right + 10}" y="{top + 12}">{found["ratio"]:.3g} ({escape(found["target"])})</text>'
        f'<text class="small" x="{right + 120}" y="{top + 12}">{escape(found["rate"])}</text>'
    )


def _plot(name: str, costs: dict[int, float]) -> str:
    subject, _, what = name.partition(": ")
    logs = [(math.log10(size), math.log10(taken)) for size, taken in sorted(costs.items())]
    left, low = logs[0][0], min(taken for _, taken in logs)
    wide, high = logs[-1][0] - left, max(max(taken for _, taken in logs) - low, 1.0)
    dots = [((at - left) / wide * PLOT_WIDTH, 128 - (taken - low) / high * (PLOT_HEIGHT - 10)) for at, taken in logs]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    return (
        f'<text y="12">{escape(subject)}</text><text class="small" y="26">{escape(what)}</text>'
        f'<rect class="frame" y="34" width="{PLOT_WIDTH}" height="98"/><polyline class="line" points="{line}"/>'
        + "".join(f'<circle class="head" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots)
        + f'<text class="small" y="146">{_short(min(costs))} to {_short(max(costs))}: {exponent(costs):.2f},'
        f" {_short(min(costs.values()))}s to {_short(max(costs.values()))}s</text>"
    )


def _short(number: float) -> str:
    scale = next(
        (one for one in ((1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")) if number >= one[0]), (1e-6, "\N{MICRO SIGN}")
    )
    return f"{number / scale[0]:.3g} {scale[1]}"


def main(source: Path, folder: Path) -> None:
    """Draw what a file of figures has."""
    found = json.loads(source.read_text())
    about = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    if "lines" in found:
        (folder / "growth.svg").write_text(draw_growth(found["lines"], about))
    for section, rows in found.get("sections", {}).items():
        (folder / f"speed-{section}.svg").write_text(draw_section(section, rows, about))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
