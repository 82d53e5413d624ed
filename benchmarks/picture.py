"""Chart of the results for the README: the ratio of each row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .rows import ROWS
from .table import OURS, PEERS, cell, matching, ratio

# Rows in the chart; the page has all rows.
PICTURED = (
    "start",
    "idle memory",
    "idle connections",
    "create topic",
    "join",
    "join many",
    "produce 100 B",
    "consume 100 B",
    "produce 1 kB",
    "consume 1 kB",
    "java produce 1 kB",
    "java consume 1 kB",
    "produce zstd",
    "ping p50",
    "ping p99",
    "pipelined",
    "tiny batches",
    "produce at rate p99",
    "receive at rate p99",
    "transactions 1",
    "transactions 8",
    "connections 100",
    "connections 1000",
    "partitions 10000",
    "readers 10",
    "groups 10",
    "cold read",
    "restart",
)
COLOURS = {"Kafka": "#1f5fa8", "kfake": "#c8701a"}
INK, FAINT = "#222222", "#d8d8d8"
NAMES = {"Kafka": "Apache Kafka 4.4", "kfake": "kfake"}
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
ROW_INCHES, WIDTH_INCHES = 0.27, 8.6


class Dot(NamedTuple):
    """One ratio. `line` counts from the top."""

    line: int
    peer: str
    durable: bool
    times: float


def dots(samples: list[dict[str, Any]]) -> Iterator[Dot]:
    """Yield the ratio to each peer, for each measured row and durability."""
    for line, name in enumerate(PICTURED):
        for peer in PEERS:
            for durable in (False, True):
                ours, theirs = (
                    cell(matching(samples, name, broker, durable)) for broker in (OURS, peer)
                )
                if (times := ratio(ROWS[name], ours, theirs)) is not None:
                    yield Dot(line, peer, durable, times)


def draw(report: dict[str, Any], directory: Path) -> None:
    """Write benchmarks.svg and benchmarks.png into a directory, with the measured commit.

    Dots of rows with fsync are filled.
    """
    from matplotlib.figure import Figure

    drawn = [*dots(report["samples"])]
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * len(PICTURED) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    for dot in drawn:
        colour = COLOURS[dot.peer]
        axes.plot(
            [dot.times],
            [dot.line],
            marker="o",
            markersize=7,
            color=colour,
            markerfacecolor=colour if dot.durable else "white",
            markeredgewidth=1.6,
        )
    for peer in PEERS:
        for durable, face in ((False, "white"), (True, COLOURS[peer])):
            if any((dot.peer, dot.durable) == (peer, durable) for dot in drawn):
                label = f"{NAMES[peer]}, {'with' if durable else 'without'} fsync"
                axes.plot([], [], "o", color=COLOURS[peer], markerfacecolor=face, label=label)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    least, most = (limit(dot.times for dot in drawn) for limit in (min, max))
    axes.set_xlim(min(0.5, least / 1.2), max(2, most * 1.2))
    ticks = [tick for tick in TICKS if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g} x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(PICTURED)), [ROWS[name].title for name in PICTURED], fontsize=9)
    axes.set_ylim(len(PICTURED) - 0.4, -0.6)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("worse  ←  performance of kbroker relative to  →  better")
    figure.suptitle("kbroker compared with Apache Kafka and kfake", fontsize=12, color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    about = report["about"]
    axes.set_title(f"{about['machine']}, {about['date']}, commit {about['commit']}", fontsize=8)
    for kind in ("svg", "png"):
        figure.savefig(directory / f"benchmarks.{kind}", dpi=130)
