"""The delays as a picture: how a day goes wrong, by airport and hour, and for whom, by carrier and hour."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.flights import AIRPORTS

if TYPE_CHECKING:
    import pyarrow as pa

_HOURS = range(5, 24)
_FEW = 20
"""A cell of fewer flights says nothing."""
_COLOURS = {"EWR": "#1b6ca8", "JFK": "#c8553d", "LGA": "#3a7d44"}
_IN_EVERY_NAME = frozenset({"Airlines", "Airways", "Air", "Lines", "Inc.", "Co.", "Corporation"})
_INK, _FAINT = "#22303c", "#8a97a3"


def draw(table: pa.Table, names: dict[str, str], target: Path) -> None:
    """Draw the table of delays into a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = table.to_pylist()
    settings: Any = {"font.size": 9, "font.family": "DejaVu Sans", "axes.edgecolor": _FAINT, "text.color": _INK,
                "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}  # fmt: skip
    with mpl.rc_context(settings):
        figure = plt.figure(figsize=(13, 8.4), dpi=150, facecolor="white")
        grid = figure.add_gridspec(
            2, 4, height_ratios=(1, 1.5), width_ratios=(1, 1, 1, 0.035),
            left=0.145, right=0.945, top=0.865, bottom=0.07, hspace=0.28, wspace=0.08,
        )  # fmt: skip
        _title(figure, rows)
        _by_hour(figure.add_subplot(grid[0, :3]), rows)
        _by_carrier(figure, grid, rows, names)
        figure.savefig(target)
        plt.close(figure)


def _title(figure: Any, rows: list[dict[str, Any]]) -> None:
    count = sum(row["flights"] for row in rows)
    figure.text(0.02, 0.945, "Delays grow through the day", fontsize=19, weight="bold")
    about = (
        f"Departure delay of {count:,} flights from New York in 2013, by scheduled hour; cancelled flights have none"
    )
    figure.text(0.02, 0.908, about, fontsize=10.5, color=_FAINT)


def _by_hour(axes: Any, rows: list[dict[str, Any]]) -> None:
    """One line an airport: the mean delay of its flights."""
    for airport, colour in _COLOURS.items():
        minutes: dict[int, int] = defaultdict(int)
        flown: dict[int, int] = defaultdict(int)
        for row in rows:
            if row["airport"] == airport:
                minutes[row["hour"]] += row["delay_minutes"]
                flown[row["hour"]] += row["flights"] - row["cancelled"]
        hours = [hour for hour in _HOURS if flown[hour] >= _FEW]
        means = [minutes[hour] / flown[hour] for hour in hours]
        axes.plot(hours, means, color=colour, linewidth=2.4, solid_capstyle="round")
        axes.plot([hours[-1], _HOURS[-1] + 0.4], [means[-1]] * 2, color=colour, linewidth=0.8, linestyle=(0, (2, 2)))
        label = f"{airport}  {AIRPORTS[airport]}"
        axes.text(_HOURS[-1] + 0.5, means[-1], label, color=colour, weight="bold", va="center")
    axes.set_xlim(_HOURS[0] - 0.3, _HOURS[-1] + 4)
    axes.set_xticks(range(6, 24, 3), [f"{hour}:00" for hour in range(6, 24, 3)])
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_ylabel("mean delay, minutes")
    axes.axhline(0, color=_FAINT, linewidth=0.8)
    axes.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _by_carrier(figure: Any, grid: Any, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """One map an airport: carriers from the one with most flights down, hours from left to right."""
    flights: dict[str, int] = defaultdict(int)
    for row in rows:
        flights[row["carrier"]] += row["flights"]
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    colours = _colours()
    image = None
    for at, airport in enumerate(AIRPORTS):
        axes = figure.add_subplot(grid[1, at])
        cells = [[float("nan")] * len(_HOURS) for _ in carriers]
        for row in rows:
            if row["airport"] == airport and row["mean_delay"] is not None and row["flights"] >= _FEW:
                cells[carriers.index(row["carrier"])][row["hour"] - _HOURS[0]] = row["mean_delay"]
        axes.set_facecolor("#f3f5f7")
        image = axes.imshow(cells, aspect="auto", cmap=colours, vmin=0, vmax=40, interpolation="nearest")
        axes.set_title(
            f"{airport}  {AIRPORTS[airport]}", loc="left", color=_COLOURS[airport], weight="bold", fontsize=10
        )
        axes.set_xticks(range(1, len(_HOURS), 3), [f"{hour}:00" for hour in list(_HOURS)[1::3]], fontsize=8)
        labels = [f"{short(names.get(carrier, carrier))}  {flights[carrier]:,}" for carrier in carriers]
        axes.set_yticks(range(len(carriers)), labels if at == 0 else [], fontsize=8)
        axes.set_xticks([edge + 0.5 for edge in range(len(_HOURS) - 1)], minor=True)
        axes.set_yticks([edge + 0.5 for edge in range(len(carriers) - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[1, 3]), extend="both")
    bar.set_label("mean delay, minutes; blue: early")
    bar.outline.set_visible(False)


def short(name: str) -> str:
    """A carrier's name without what every one of them has in it."""
    rest = " ".join(word for word in name.split() if word not in _IN_EVERY_NAME)
    return rest if len(rest) > 2 else name.removesuffix(" Inc.")


def _colours() -> Any:
    """From pale to red by delay; what leaves early on average is blue."""
    import matplotlib as mpl

    return mpl.colormaps["YlOrRd"].with_extremes(under="#a9cfe6", over="#5c0020", bad="#f3f5f7")
