"""Draw the points of section growth as small multiples in one SVG: ``python -m benchmarks.drawing JSON SVG``."""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path

from benchmarks.growth import exponent

COLUMNS, WIDTH, HEIGHT, PLOT_WIDTH, PLOT_HEIGHT = 4, 235, 165, 190, 90
STYLE = (
    "text{fill:#1f2328;font:12px system-ui,sans-serif}.small{font-size:10px;fill:#59636e}"
    ".frame{fill:none;stroke:#afb8c1}.line{fill:none;stroke:#0969da;stroke-width:2}.head{fill:#0969da}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.frame{stroke:#3d444d}"
    ".line{stroke:#4493f8}.head{fill:#4493f8}}"
)


def draw(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """One plot for each line, both axes logarithmic, with its exponent."""
    plots = []
    for number, (name, points) in enumerate(found["lines"].items()):
        costs = {int(size): taken for size, taken in points.items()}
        place = f"translate({number % COLUMNS * WIDTH + 8} {number // COLUMNS * HEIGHT + 8})"
        plots.append(f'<g transform="{place}">{_plot(name, costs)}</g>')
    rows = -(-len(plots) // COLUMNS)
    about = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    title = f"CPU seconds over the size, both logarithmic, and the exponent of the larger half. {about}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH + 8} {rows * HEIGHT + 24}" role="img"'
        f' aria-labelledby="growth-title">\n<title id="growth-title">{escape(title)}</title>\n<style>{STYLE}</style>\n'
        + "\n".join(plots)
        + f'\n<text class="small" x="8" y="{rows * HEIGHT + 16}">{escape(title)}</text>\n</svg>\n'
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


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(json.loads(Path(sys.argv[1]).read_text())))
