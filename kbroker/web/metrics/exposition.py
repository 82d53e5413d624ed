"""Exposition of metrics in chunks of text.

Small families use the encoders of prometheus_client. Families with many samples, such as partitions
with about ten samples each, are written as plain lines, which is ten times faster.
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

# Samples per call of a prometheus_client encoder, which takes some milliseconds.
SAMPLES_AT_ONCE = 200
LINES_AT_ONCE = 5000
OPEN_METRICS = "application/openmetrics-text"
END = b"# EOF\n"
# Counters need care: depending on the format, the family name has the suffix `_total` or not.
COUNTER = "counter"


class Format(NamedTuple):
    """An exposition format."""

    content_type: str
    encode: Callable[[Collector], bytes]
    end: bytes


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", exposition.generate_latest, b"")
OPEN = Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, END)


def format_of(accept: str) -> Format:
    """Return the format for an Accept header."""
    _, chosen = exposition.choose_encoder(accept)
    return OPEN if chosen.startswith(OPEN_METRICS) else TEXT


class Family:
    """A metric family with many samples, stored as formatted lines."""

    __slots__ = ("kind", "lines", "name", "text")

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.lines: list[str] = []

    def add(self, labels: str, value: int | str) -> None:
        """Add a sample.

        Args:
            labels: Result of `format_labels`, or empty.
            value: The value; a string is written as it is.
        """
        self.lines.append(f"{self.name}{labels} {value}\n")

    def pieces(self, wanted: Format) -> Iterator[bytes]:
        """Yield the text of the family; nothing without samples."""
        if not self.lines:
            return
        name = self.name.removesuffix("_total") if self.kind == COUNTER else self.name
        yield _head(Metric(name, self.text, self.kind), wanted)
        for first in range(0, len(self.lines), LINES_AT_ONCE):
            yield "".join(self.lines[first : first + LINES_AT_ONCE]).encode()


def metric_pieces(metric: Metric, wanted: Format) -> Iterator[bytes]:
    """Yield the text of a prometheus_client metric; nothing without samples."""
    samples = iter(metric.samples)
    head = _head(metric, wanted)
    is_first = True
    while some := list(islice(samples, SAMPLES_AT_ONCE)):
        piece = _without_end(wanted.encode(_Only(_like(metric, some))))
        yield piece if is_first else piece.removeprefix(head)
        is_first = False


def format_labels(**labels: str) -> str:
    """Return the label part of a sample, sorted by name like the encoders do."""
    pairs = (f'{name}="{escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    """Escape a label value."""
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
    """A collector with a single metric, for an encoder."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]
