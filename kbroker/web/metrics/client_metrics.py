"""Client telemetry (KIP-714): the newest push of each client.

Clients choose the metric names, so they become label values and the number of series is limited. Each
push is parsed once, in a worker thread.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from kbroker.node.client_metrics import Labels, Pushed
from kbroker.node.node import Node
from kbroker.protocol.otlp import Metric
from kbroker.runtime.cpu_shares import CpuAccount

from .exposition import Family, format_labels

# Maximum number of series of all clients together.
ROWS_MAX = 10_000
# Maximum number of series per client.
ROWS_OF_ONE_MAX = 500
# Maximum number of data points that are parsed per push: some may be duplicates.
POINTS_MAX = 2 * ROWS_OF_ONE_MAX
# CPU time per scrape for parsing new pushes; the others are skipped until the next scrape.
READ_SECONDS = 1.0
# Maximum number of characters of a metric name or of its attributes.
TEXT_MAX = 200
CLIENT = "kbroker_client_metric"
# Prometheus spelling of Python's non-finite floats.
NON_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}

# Labels and values in exposition format.
Lines: TypeAlias = list[tuple[str, str]]


class PushedMetrics:
    """Parsed telemetry of one node's clients."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Newest parsed push by client instance ID.
        self._read: dict[str, tuple[Pushed, Lines]] = {}
        self._account = CpuAccount()

    def belongs_to(self, node: Node) -> bool:
        """Return True if this belongs to the current run of a node."""
        return self._node is node

    async def family(self) -> tuple[Family, int]:
        """Return the metric family and the number of dropped series."""
        family = Family(CLIENT, "gauge", "Client telemetry (KIP-714).")
        read: dict[str, tuple[Pushed, Lines]] = {}
        ends_at = self._account.seconds + READ_SECONDS
        dropped_series = 0
        for labels, pushed in self._node.client_metrics.latest():
            if len(family.lines) >= ROWS_MAX:
                dropped_series += 1
                continue
            name = labels["client_instance_id"]
            before = self._read.get(name)
            if before is None or before[0] is not pushed:
                if self._account.seconds >= ends_at:
                    dropped_series += 1
                    continue
                work = partial(_lines, labels, pushed)
                before = pushed, await self._node.heavy_work.run(work, self._account)
            # Keep it for the next scrape even if this one is cancelled.
            read[name] = self._read[name] = before
            for row, value in before[1]:
                family.add(row, value)
        self._read = read
        return family, dropped_series


def _lines(labels: Labels, pushed: Pushed) -> Lines:
    try:
        metrics = pushed.metrics(POINTS_MAX)
    except ValueError:
        return []
    # A push may contain duplicates, also after truncation of names.
    rows = {_labels(labels, each): _text_of(each.value) for each in metrics}
    return [*rows.items()][:ROWS_OF_ONE_MAX]


def _text_of(value: float) -> str:
    text = repr(float(value))
    return NON_FINITE.get(text, text)


def _labels(labels: Labels, metric: Metric) -> str:
    attributes = ",".join(f"{name}={value}" for name, value in sorted(metric.attributes.items()))
    return format_labels(
        attributes=attributes[:TEXT_MAX],
        client_id=labels["client_id"],
        client_instance_id=labels["client_instance_id"],
        metric=metric.name[:TEXT_MAX],
        software=labels["client_software_name"],
    )
