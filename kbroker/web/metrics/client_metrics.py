"""What clients have sent of themselves (KIP-714), the newest of each.

Clients name what they send. So names are a label here, and there is an end to how many rows there are; it is
read in a worker thread, and each push once.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from kbroker.node.client_metrics import Labels, Pushed
from kbroker.node.node import Node
from kbroker.protocol.otlp import Metric
from kbroker.runtime.cpu_shares import HeavyClient

from .exposition import Family, labelled

ROWS_MAX = 10_000
"""Of all clients together."""
ROWS_OF_ONE_MAX = 500
POINTS_MAX = 2 * ROWS_OF_ONE_MAX
"""Data points that are read of one push: some may be repeated."""
READ_SECONDS = 1.0
"""CPU time in which one look reads new pushes; the others are left out until the next look."""
TEXT_MAX = 200
"""Characters of a name, or of what belongs to it."""
CLIENT = "kbroker_client_metric"
NO_NUMBERS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
"""As Python writes them, and as Prometheus does."""

Lines: TypeAlias = list[tuple[str, str]]
"""Labels and values as they go out."""


class PushedMetrics:
    """What the clients of one node have sent, as it is told."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._read: dict[str, tuple[Pushed, Lines]] = {}
        """What was read of the newest push of each client."""
        self._account = HeavyClient()

    def is_of(self, node: Node) -> bool:
        """Whether it is about this run of a node."""
        return self._node is node

    async def family(self) -> tuple[Family, int]:
        """The rows, and how many are left out."""
        family = Family(CLIENT, "gauge", "What clients have sent of themselves (KIP-714).")
        read: dict[str, tuple[Pushed, Lines]] = {}
        ends_at = self._account.seconds + READ_SECONDS
        left_out = 0
        for labels, pushed in self._node.client_metrics.latest():
            if len(family.lines) >= ROWS_MAX:
                left_out += 1
                continue
            name = labels["client_instance_id"]
            before = self._read.get(name)
            if before is None or before[0] is not pushed:
                if self._account.seconds >= ends_at:
                    left_out += 1
                    continue
                work = partial(_lines, labels, pushed)
                before = pushed, await self._node.heavy_work.run(work, self._account)
            # Also kept for the next look if this one is cancelled.
            read[name] = self._read[name] = before
            for row, value in before[1]:
                family.add(row, value)
        self._read = read
        return family, left_out


def _lines(labels: Labels, pushed: Pushed) -> Lines:
    try:
        metrics = pushed.metrics(POINTS_MAX)
    except ValueError:
        return []
    # A push may have the same twice, or what is the same when it is cut off.
    rows = {_labels(labels, each): _text_of(each.value) for each in metrics}
    return [*rows.items()][:ROWS_OF_ONE_MAX]


def _text_of(value: float) -> str:
    text = repr(float(value))
    return NO_NUMBERS.get(text, text)


def _labels(labels: Labels, metric: Metric) -> str:
    attributes = ",".join(f"{name}={value}" for name, value in sorted(metric.attributes.items()))
    return labelled(
        attributes=attributes[:TEXT_MAX],
        client_id=labels["client_id"],
        client_instance_id=labels["client_instance_id"],
        metric=metric.name[:TEXT_MAX],
        software=labels["client_software_name"],
    )
