"""Chart of the departure delay through the day, for rainy and dry weather."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import truth

# Minimum number of flights for a meaningful mean of an hour.
_FLIGHTS_MIN = 50
_RAIN, _DRY, _INK, _QUIET = "#2166ac", "#e08214", "#222222", "#777777"


def save(hours: Mapping[truth.Hour, truth.Figures], path: Path) -> None:
    """Draw mean departure delay by scheduled hour and weather into a PNG file.

    Args:
        hours: Results by hour of day (local time) and weather.
        path: The PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=150, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.08, right=0.92, top=0.8, bottom=0.13)
    rain, dry = mean_delays(hours, "rain"), mean_delays(hours, "dry")
    both = sorted(rain.keys() & dry.keys())
    axes.fill_between(
        both, [dry[h] for h in both], [rain[h] for h in both], color=_RAIN, alpha=0.10, linewidth=0
    )
    for name, means, colour in (("rain", rain, _RAIN), ("dry", dry, _DRY)):
        at = sorted(means)
        axes.plot(at, [means[h] for h in at], color=colour, linewidth=2.4, marker="o", markersize=4)
        if at:
            label = (at[-1], means[at[-1]])
            axes.annotate(
                name, label, (8, 0), textcoords="offset points",
                color=colour, va="center", fontsize=12, fontweight="bold",
            )  # fmt: skip
    _style_axes(axes)
    flights = sum(figures["flights"] or 0 for figures in hours.values())
    figure.text(
        0.08, 0.92, "Departure delay through the day, in rain and in dry weather",
        fontsize=15, fontweight="bold", color=_INK,
    )  # fmt: skip
    figure.text(
        0.08, 0.86, "Mean delay in minutes by scheduled hour · "
        f"{flights:,} departures of 2013 from New York's EWR, JFK and LGA",
        fontsize=10, color=_QUIET,
    )  # fmt: skip
    figure.savefig(path)


def mean_delays(hours: Mapping[truth.Hour, truth.Figures], weather: str) -> dict[int, float]:
    """Return the mean delay in minutes by hour, for hours with enough flights."""
    return {
        hour: (figures["delay_sum"] or 0) / departed
        for (hour, kind), figures in hours.items()
        if kind == weather and (departed := figures["departed"] or 0) >= _FLIGHTS_MIN
    }


def _style_axes(axes: object) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_QUIET, length=0, labelsize=10)
    axes.set_xticks(range(5, 24, 2), [f"{hour}:00" for hour in range(5, 24, 2)])
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
