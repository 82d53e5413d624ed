"""Metrics of a node as an HTTP client reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest

from ...wire import Topic, Wire
from ..client import HttpResponse, get

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def commit(wire: Wire, group: str, topic: str, partition: int, offset: int) -> None:
    row = OffsetCommitRequest.Partition(partition_index=partition, committed_offset=offset)
    rows = [OffsetCommitRequest.Topic(name=topic, partitions=[row])]
    await wire.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group))
    ask = OffsetCommitRequest(group_id=group, topics=rows)
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 8, ask)
    assert response.topics[0].partitions[0].error_code == 0, response


async def create(broker: Broker, name: str, partitions: int = 1, replicas: int = 1) -> Topic:
    new = NewTopic(name, partitions, replicas)
    topic = await create_topic(broker.node.cluster, broker.node.config, new, cause="a test")
    return Topic(topic.name, topic.id)


def samples_of(response: HttpResponse) -> Samples:
    """Return all samples by name and labels, and check that each is unique."""
    assert response.status == 200
    is_open = response.headers["content-type"].startswith("application/openmetrics-text")
    parse: Callable[[str], Iterator[object]] = parse_open_metrics if is_open else parse_text  # type: ignore[assignment]
    found: Samples = {}
    for family in parse(response.text):
        for sample in family.samples:  # type: ignore[attr-defined]
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


class Scrape:
    """The samples of one scrape."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


async def scrape(endpoint: Endpoint, accept: str = "") -> Scrape:
    return Scrape(samples_of(await get(endpoint, "/metrics", Accept=accept)))
