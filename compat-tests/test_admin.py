"""Tests of the admin calls of each client, with valid and invalid requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import UNKNOWN_TOPIC, ClientError, ClientProcess, Library, eventually

Unique = Callable[[str], str]
ROUNDS = 20
TOO_LARGE, INVALID_CONFIG, SUBSCRIBED = 10, 40, 86
# Every topic config of Kafka 4.4 without overrides (segment size as in conftest.py).
TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "errors.deadletterqueue.group.enable": "false",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.decompressed.message.bytes": "2147483639",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1048576",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


@pytest.fixture
def worker(client: Library, workers: Callable[[str], ClientProcess]) -> ClientProcess:
    return workers(client.name)


@pytest.fixture
def settled(broker: Broker, client: Library) -> Callable[..., Any]:
    """Return a function that polls until a condition holds: Kafka propagates metadata slowly."""
    seconds = max(broker.settle_seconds, client.cache_seconds)

    def wait(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
        return eventually(look, holds, "settled", seconds, not_yet=UNKNOWN_TOPIC)

    return wait


def error_of(call: Callable[[], Any]) -> int | None:
    """Return Kafka's error code that a call raises. Fails if the call succeeds."""
    try:
        answer = call()
    except ClientError as error:
        return error.code
    pytest.fail(f"no error, but {answer}")


@pytest.mark.needs("admin")
@pytest.mark.everyone
def test_topic_is_created_deleted_and_recreated(
    worker: ClientProcess, unique: Unique, settled: Callable[..., Any]
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic, partitions=3)
    settled(lambda: worker.admin("topics"), lambda seen: topic in seen)
    (node,) = worker.admin("describe_cluster")["nodes"]
    found = worker.admin("describe_topic", name=topic)
    assert not found["internal"]
    assert found["partitions"] == [
        {"number": number, "leader": node, "replicas": [node], "isr": [node]} for number in range(3)
    ]
    worker("produce", topic=topic, records=[{"value": "old", "partition": 0}])
    worker.admin("delete_topic", name=topic)
    worker.admin("create_topic", name=topic, partitions=1)
    settled(
        lambda: len(worker.admin("describe_topic", name=topic)["partitions"]),
        lambda seen: seen == 1,
    )
    settled(
        lambda: worker("offsets", topic=topic, at="latest"),
        lambda seen: seen == {"0": 0},
    )
    worker.admin("delete_topic", name=topic)
    settled(lambda: worker.admin("topics"), lambda seen: topic not in seen)


def test_new_topic_is_usable_immediately(worker: ClientProcess, unique: Unique) -> None:
    for round_ in range(ROUNDS):
        topic = f"{unique('topic')}-{round_}"
        worker.admin("create_topic", name=topic)
        answers = worker("produce", topic=topic, records=[{"value": "x", "partition": 0}])
        assert answers == [{"partition": 0, "offset": 0}]


@pytest.mark.needs("admin")
@pytest.mark.everyone
def test_topic_is_created_with_configs(worker: ClientProcess, unique: Unique) -> None:
    topic = unique("topic")
    wanted = {"retention.ms": "123456", "cleanup.policy": "compact", "max.message.bytes": "2048"}
    worker.admin("create_topic", name=topic, configs=wanted)
    found = worker.admin("topic_configs", name=topic)
    assert found == {**TOPIC_DEFAULTS, **wanted}


@pytest.mark.needs("alters_configs")
@pytest.mark.everyone
def test_altered_topic_config_takes_effect_and_is_reset(
    client: Library, worker: ClientProcess, unique: Unique, settled: Callable[..., Any]
) -> None:
    """Some clients replace all configs with each change; the others keep the existing ones."""
    topic = unique("topic")
    worker.admin("create_topic", name=topic, configs={"retention.ms": "123456"})
    kept = {} if client.replaces_configs else {"retention.ms": "123456"}
    large = {"value": "x" * 5_000, "partition": 0}
    limit = {"max.message.bytes": "2000"}
    worker.admin("alter_topic_configs", name=topic, configs=limit)
    settled(
        lambda: worker.admin("topic_configs", name=topic),
        lambda seen: seen == {**TOPIC_DEFAULTS, **kept, **limit},
    )
    (answer,) = worker("produce", topic=topic, records=[large], retries=0)
    assert answer["error"]["code"] == TOO_LARGE
    worker.admin("alter_topic_configs", name=topic, configs={"max.message.bytes": None})
    settled(
        lambda: worker.admin("topic_configs", name=topic),
        lambda seen: seen == {**TOPIC_DEFAULTS, **kept},
    )
    assert worker("produce", topic=topic, records=[large]) == [{"partition": 0, "offset": 0}]
    wrong = {"retention.ms": "soon"}
    refused = error_of(lambda: worker.admin("alter_topic_configs", name=topic, configs=wrong))
    assert refused == INVALID_CONFIG


@pytest.mark.needs("admin")
@pytest.mark.everyone
def test_broker_configs_are_described(worker: ClientProcess) -> None:
    cluster = worker.admin("describe_cluster")
    assert cluster["controller"] in cluster["nodes"]
    found = worker.admin("broker_configs", node=cluster["nodes"][0])
    expected = {
        "message.max.bytes": "1048588",
        "group.min.session.timeout.ms": "1000",
        "log.segment.bytes": "1048576",
        "auto.create.topics.enable": "true",
        "num.partitions": "1",
        "log.retention.hours": "168",
        "offsets.retention.minutes": "10080",
    }
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.needs("admin")
@pytest.mark.everyone
def test_added_partitions_accept_records(
    worker: ClientProcess, unique: Unique, settled: Callable[..., Any]
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": "kept", "partition": 0}])
    worker.admin("add_partitions", name=topic, total=4)
    settled(
        lambda: len(worker.admin("describe_topic", name=topic)["partitions"]),
        lambda seen: seen == 4,
    )
    answers = worker("produce", topic=topic, records=[{"value": "new", "partition": 3}])
    assert answers == [{"partition": 3, "offset": 0}]
    assert worker("offsets", topic=topic, at="latest") == {"0": 1, "1": 0, "2": 0, "3": 1}


@pytest.fixture
def used_group(
    client: Library, worker: ClientProcess, unique: Unique, spawn: Callable[..., ClientProcess]
) -> tuple[str, str, ClientProcess]:
    """Return (topic, group, its only member) after ten records were read and committed."""
    topic, group = unique("topic"), unique("group")
    worker.admin("create_topic", name=topic, partitions=2)
    records = [{"value": str(i), "partition": i % 2} for i in range(10)]
    worker("produce", topic=topic, records=records)
    member = spawn(client)
    member("join", member="me", topics=[topic], group=group)
    eventually(lambda: member("state", member="me")["count"], lambda seen: seen >= 10, "records")
    member("commit", member="me")
    return topic, group, member


@pytest.mark.needs("admin")
@pytest.mark.everyone
def test_groups_are_described(
    client: Library, worker: ClientProcess, used_group: tuple[str, str, ClientProcess]
) -> None:
    topic, group, member = used_group
    assert group in worker.admin("groups")
    described = worker.admin("describe_group", group=group)
    strategy = client.strategy if client.describes_strategy else None
    assert described == {"state": "Stable", "members": 1, "strategy": strategy}
    assert worker.admin("group_offsets", group=group, topic=topic) == {"0": 5, "1": 5}
    member("leave", member="me")
    described = worker.admin("describe_group", group=group)
    assert (described["state"], described["members"]) == ("Empty", 0)
    assert worker.admin("group_offsets", group=group, topic=topic) == {"0": 5, "1": 5}


@pytest.mark.needs("deletes_offsets")
@pytest.mark.everyone
def test_group_offsets_are_deleted_after_members_leave(
    worker: ClientProcess, used_group: tuple[str, str, ClientProcess]
) -> None:
    topic, group, member = used_group
    one = {"group": group, "topic": topic, "partition": 0}
    assert error_of(lambda: worker.admin("delete_offsets", **one)) == SUBSCRIBED
    member("leave", member="me")
    worker.admin("delete_offsets", **one)
    assert worker("committed", group=group, topic=topic) == {"0": None, "1": 5}


@pytest.mark.needs("admin")
@pytest.mark.everyone
@pytest.mark.needs("deletes_groups")
def test_only_empty_groups_are_deleted(
    worker: ClientProcess, used_group: tuple[str, str, ClientProcess]
) -> None:
    topic, group, member = used_group
    assert error_of(lambda: worker.admin("delete_group", group=group)) == 68
    member("leave", member="me")
    worker.admin("delete_group", group=group)
    assert group not in worker.admin("groups")
    assert worker("committed", group=group, topic=topic) == {"0": None, "1": None}
    assert error_of(lambda: worker.admin("delete_group", group=group)) == 69


@pytest.mark.everyone
@pytest.mark.needs("deletes_records")
def test_delete_records_advances_log_start_offset(worker: ClientProcess, unique: Unique) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": str(i), "partition": 0} for i in range(20)])
    assert worker.admin("delete_records", topic=topic, partition=0, before=15) == 15
    assert worker("offsets", topic=topic, at="earliest") == {"0": 15}
    rows = worker("read", topic=topic, count=5)
    assert [row["value"] for row in rows] == ["15", "16", "17", "18", "19"]
    wrong = {"topic": topic, "partition": 0, "before": 21}
    assert error_of(lambda: worker.admin("delete_records", **wrong)) == 1
