"""Invalid requests, and the error code that the application gets.

The expected codes are Kafka's. `OTHERWISE` lists clients that reject the request themselves or
report another code than the broker returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from harness.brokers import Broker
from harness.clients import ClientError, ClientProcess, Library, eventually

NO_BROKER_ERROR = None
SWALLOWED = 0
CREATED = -2
HOUR_MS = 3_600_000


class Wrong(NamedTuple):
    """A request and the error code that Kafka returns."""

    name: str
    request: Callable[[ClientProcess, str], Any]
    code: int


def create(**arguments: Any) -> Callable[[ClientProcess, str], Any]:
    """Return a request that creates a topic, by default with a new name."""
    return lambda worker, topic: worker.admin("create_topic", **{"name": topic, **arguments})


def send(configs: dict[str, str], **record: Any) -> Callable[[ClientProcess, str], Any]:
    """Return a request that sends one record to a new topic and raises its error."""

    def request(worker: ClientProcess, topic: str) -> Any:
        worker.admin("create_topic", name=topic, configs=configs)
        record.setdefault("partition", 0)
        (answer,) = worker("produce", topic=topic, records=[record], retries=0)
        if "error" in answer:
            raise ClientError("produce", answer["error"], worker.stderr_tail())
        return answer

    return request


def create_twice(worker: ClientProcess, topic: str) -> Any:
    worker.admin("create_topic", name=topic)
    time.sleep(0.2)
    return worker.admin("create_topic", name=topic)


def fewer_partitions(worker: ClientProcess, topic: str) -> Any:
    worker.admin("create_topic", name=topic, partitions=3)
    time.sleep(0.2)
    return worker.admin("add_partitions", name=topic, total=2)


def read_beyond_the_end(worker: ClientProcess, topic: str) -> Any:
    worker.admin("create_topic", name=topic)
    time.sleep(0.2)
    return worker("read", topic=topic, start={"0": 1_000_000}, reset="none")


def commit_into_an_active_group(worker: ClientProcess, topic: str) -> Any:
    worker.admin("create_topic", name=topic)
    worker("join", member=topic, topics=[topic], group=topic)
    try:
        eventually(lambda: worker("state", member=topic)["assigned"], bool, "assignment")
        return worker("commit_as", group=topic, topic=topic, offsets={"0": 0})
    finally:
        worker("leave", member=topic)


def join_with(**options: Any) -> Callable[[ClientProcess, str], Any]:
    """Return a request that joins a group and waits for the error of the member's thread."""

    def request(worker: ClientProcess, topic: str) -> Any:
        worker.admin("create_topic", name=topic)
        worker("join", member=topic, topics=[topic], group=topic, **options)
        return eventually(lambda: worker("state", member=topic)["assigned"], bool, "assignment", 8)

    return request


CASES = [
    Wrong("topic exists", create_twice, 36),
    Wrong("topic name with a space", create(name="not a name"), 17),
    Wrong("topic name too long", create(name="x" * 250), 17),
    Wrong("topic name is a dot", create(name="."), 17),
    Wrong("no partitions", create(partitions=0), 37),
    Wrong("more replicas than brokers", create(replication=3), 38),
    Wrong("bad config value", create(configs={"retention.ms": "soon"}), 40),
    Wrong("unknown config", create(configs={"no.such.config": "1"}), 40),
    Wrong("delete unknown topic", lambda w, t: w.admin("delete_topic", name=t), 3),
    Wrong("describe unknown topic", lambda w, t: w.admin("describe_topic", name=t), 3),
    Wrong("configs of unknown topic", lambda w, t: w.admin("topic_configs", name=t), 3),
    Wrong(
        "more partitions for unknown topic",
        lambda w, t: w.admin("add_partitions", name=t, total=2),
        3,
    ),
    Wrong("fewer partitions", fewer_partitions, 37),
    Wrong(
        "record too large for the topic", send({"max.message.bytes": "2000"}, value="x" * 5000), 10
    ),
    Wrong("record too large for the broker", send({}, value="x" * 2_000_000), 10),
    Wrong("no key in a compacted topic", send({"cleanup.policy": "compact"}, value="x"), 87),
    Wrong(
        "timestamp in the future",
        send({}, value="x", timestamp=int(time.time() * 1000) + 3 * HOUR_MS),
        32,
    ),
    Wrong("read beyond the end", read_beyond_the_end, 1),
    Wrong("commit into an active group", commit_into_an_active_group, 25),
    Wrong("session timeout too small", join_with(session_ms=500), 26),
]

OTHERWISE: dict[tuple[str, str], int | None] = {
    # Their error tables lack 87.
    ("kafka-python-2", "no key in a compacted topic"): -1,
    ("aiokafka", "no key in a compacted topic"): -1,
    # Reports a record's error code as -1.
    ("platformatic", "no key in a compacted topic"): -1,
    ("platformatic", "timestamp in the future"): -1,
    # These clients raise their own exceptions.
    ("kafka-python-2", "commit into an active group"): NO_BROKER_ERROR,
    ("confluent-kafka", "read beyond the end"): NO_BROKER_ERROR,
    ("kafkajs", "commit into an active group"): NO_BROKER_ERROR,
    ("platformatic", "describe unknown topic"): NO_BROKER_ERROR,
    # Returns no configs instead of an error.
    ("kafka-python-3", "configs of unknown topic"): SWALLOWED,
    # Always resets to one end of the log.
    ("kafkajs", "read beyond the end"): SWALLOWED,
}


KBROKER_OTHERWISE: dict[tuple[str, str], int | None] = {
    # Its request creates the topic: on kbroker immediately, on Kafka later.
    ("aiokafka", "describe unknown topic"): CREATED,
}


@pytest.mark.needs("admin")
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name.replace(" ", "-"))
def test_invalid_request_raises_error_code(
    client: Library,
    workers: Callable[[str], ClientProcess],
    unique: Callable[[str], str],
    case: Wrong,
    broker: Broker,
) -> None:
    known = {**OTHERWISE, **(KBROKER_OTHERWISE if broker.name == "kbroker" else {})}
    expected = known.get((client.name, case.name), case.code)
    if expected in (SWALLOWED, CREATED):
        answer = case.request(workers(client.name), unique("w"))
        assert bool(answer) is (expected == CREATED)
        return
    with pytest.raises(ClientError) as caught:
        case.request(workers(client.name), unique("w"))
    assert caught.value.code == expected, str(caught.value)
