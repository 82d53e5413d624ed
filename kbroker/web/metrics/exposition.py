"""Metrics as text, in pieces: the library's encoders for what is few, plain lines for what is many.

A line is what the encoders write, ten times faster: partitions have some ten lines each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SAMPLES_AT_ONCE = 200
"""Of the library's encoders, which take some milliseconds for so many."""
LINES_AT_ONCE = 5000
OPEN_METRICS = "application/openmetrics-text"
END = b"# EOF\n"
COUNTER = "counter"
"""Its name in a head is without the end that its samples have, or with it: the encoder knows."""


class Format(NamedTuple):
    """One way to write metrics."""

    content_type: str
    encode: Callable[[Collector], bytes]
    end: bytes


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", exposition.generate_latest, b"")
OPEN = Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, END)


def format_of(accept: str) -> Format:
    """What an Accept header asks for."""
    _, chosen = exposition.choose_encoder(accept)
    return OPEN if chosen.startswith(OPEN_METRICS) else TEXT


class Family:
    """A metric with many samples: `lines` has each as it goes out."""

    __slots__ = ("kind", "lines", "name", "text")

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.lines: list[str] = []

    def add(self, labels: str, value: int | str) -> None:
        """A sample; `labels` come from `labelled`, or are empty; a text is a value as it goes out."""
        self.lines.append(f"{self.name}{labels} {value}\n")

    def pieces(self, wanted: Format) -> Iterator[bytes]:
        """Its text; nothing without samples."""
        if not self.lines:
            return
        name = self.name.removesuffix("_total") if self.kind == COUNTER else self.name
        yield _head(Metric(name, self.text, self.kind), wanted)
        for first in range(0, len(self.lines), LINES_AT_ONCE):
            yield "".join(self.lines[first : first + LINES_AT_ONCE]).encode()


def metric_pieces(metric: Metric, wanted: Format) -> Iterator[bytes]:
    """The text of a metric of the library; nothing without samples."""
    samples = iter(metric.samples)
    head = _head(metric, wanted)
    is_first = True
    while some := list(islice(samples, SAMPLES_AT_ONCE)):
        piece = _without_end(wanted.encode(_Only(_like(metric, some))))
        yield piece if is_first else piece.removeprefix(head)
        is_first = False


def labelled(**labels: str) -> str:
    """Labels of a sample, in the order of their names as the encoders write them."""
    pairs = (f'{name}="{escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _head(metric: Metric, wanted: Format) -> bytes:
    return _without_end(wanted.encode(_Only(_like(metric, []))))


def _like(metric: Metric, samples: list[Sample]) -> Metric:
    part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    part.samples = samples
    return part


def _without_end(text: bytes) -> bytes:
    return text.removesuffix(END)


class _Only(Collector):
    """A registry of one metric, for an encoder."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]
