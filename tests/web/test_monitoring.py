"""Documentation, alert rules and the dashboard use only metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.groups import HeartbeatRequest

from ..wire import batch, connected, produce
from .client import served
from .metrics.nodes import commit, create, scrape

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples/monitoring"
NAME = re.compile(r"\b((?:kafka|kbroker|process)_[a-z_]+)\b")
# Suffixes of histogram samples.
ENDS = ("_bucket", "_count", "_sum")
# Names in the metrics page that look like metrics.
IN_PROSE = {"kafka_exporter", "kbroker_node"}
# Metrics that are exposed only after a client has pushed them, if a share group has dead letters, or
# with several node processes.
RARE = {
    "kbroker_node_metrics_up",
    "kbroker_client_metric",
    "kbroker_share_dead_letters_total",
    "kafka_server_sharegroupmetrics_deadletterqueuerecordcount_total",
    "kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count_total",
    "kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequests_total",
    "kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequestspersec_total",
    "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total",
    "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequestspersec_total",
}


async def served_names(directory: Path) -> set[str]:
    """Return the names of all metrics that a broker exposes after some use."""
    async with served(directory) as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders")
        await produce(wire, topic, batch([b"a"]))
        await commit(wire, "billing", "orders", 0, 1)
        await wire.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", member_id="m"))
        broker.node.groups.rebalances["joined"] += 1
        return (await scrape(http.endpoint_of(1))).names()


def base_name(name: str) -> str:
    for end in ENDS:
        if name.startswith("kbroker_") and name.endswith(f"_seconds{end}"):
            return name.removesuffix(end)
    return name


def expressions(found: Any) -> Iterator[str]:
    """Yield all Prometheus queries in a document."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in ("expr", "definition"):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(found, list):
        for each in found:
            yield from expressions(each)


@pytest.fixture(scope="module")
def rules() -> Any:
    return yaml.safe_load((MONITORING / "kbroker.rules.yml").read_text())


async def test_metrics_page_lists_exactly_the_exposed_metrics(tmp_path: Path) -> None:
    page = set(NAME.findall((ROOT / "docs/reference/metrics.md").read_text())) - IN_PROSE
    assert page - RARE == {base_name(each) for each in await served_names(tmp_path)}


async def test_rules_and_dashboard_use_exposed_metrics_only(tmp_path: Path, rules: Any) -> None:
    exposed = await served_names(tmp_path)
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    used = {name for each in expressions([rules, dashboard]) for name in NAME.findall(each)}
    assert used - exposed == set()
    assert len(used) > 25


def test_each_alert_is_documented(rules: Any) -> None:
    alerts = {each["alert"]: each["labels"]["severity"] for each in rules["groups"][0]["rules"]}
    page = (ROOT / "docs/how-to/alerts.md").read_text()
    rows = dict(re.findall(r"^\| (Kbroker\w+) \| (\w+) \|", page, re.MULTILINE))
    assert rows == alerts


def test_dashboard_panels_do_not_overlap() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        position = panel["gridPos"]
        for x in range(position["x"], position["x"] + position["w"]):
            for y in range(position["y"], position["y"] + position["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))
    assert max(x for x, _ in taken) == 23
