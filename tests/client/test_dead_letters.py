"""Dead-letter queues of share groups, as the client reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.client import dead_letters
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.configs import Operation, Resource, alter_configs, describe_configs
from kbroker.client.dead_letters import DeadLetterQueue, dead_letter_queue
from kbroker.client.list_offsets import FoundOffset
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, Partition, create_topics
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import Record

from ..brokers import started

GROUP, QUEUE = "queue", "dlq.errors"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}


async def set_group(cluster: ClusterClient, **settings: str) -> None:
    changes = {
        f"errors.deadletterqueue.{name.replace('_', '.')}": (Operation.SET, value)
        for name, value in settings.items()
    }
    await alter_configs(cluster, Resource.GROUP, GROUP, changes)


async def test_group_without_queue_has_none() -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        assert await dead_letter_queue(cluster, GROUP) is None


async def test_queue_has_number_of_records_in_all_partitions() -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_topics(cluster, [NewTopic(QUEUE, 2, configs=ENABLED)])
        records = [Record(None, b"v", 0, [], -1)] * 3
        await Producer(cluster).write({(QUEUE, 0): records, (QUEUE, 1): records[:1]})
        await set_group(cluster, topic_name=QUEUE, copy_record_enable="true")
        found = await dead_letter_queue(cluster, GROUP)
        assert found == DeadLetterQueue(QUEUE, True, 4, None)


@pytest.mark.parametrize(
    ("configs", "name", "reason"),
    [
        (None, QUEUE, "topic dlq.errors does not exist; create it, or set"),
        ({}, QUEUE, "topic dlq.errors is not enabled as a dead-letter queue; set"),
        (ENABLED | {"cleanup.policy": "compact"}, QUEUE, "topic dlq.errors is compacted, and"),
        (ENABLED, "errors", "topic name errors does not start with dlq., the value of"),
    ],
)
async def test_problem_of_unusable_queue_is_reported(
    configs: dict[str, str] | None, name: str, reason: str
) -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        if configs is not None:
            await create_topics(cluster, [NewTopic(name, 1, configs=configs)])
        await set_group(cluster, topic_name=name)
        found = await dead_letter_queue(cluster, GROUP)
        assert found is not None
        assert found.records == (None if configs is None else 0)
        assert reason in (found.problem or "")


async def test_missing_queue_that_broker_creates_is_no_problem() -> None:
    async with (
        started(errors_deadletterqueue_auto_create_topics_enable=True) as broker,
        open_cluster([broker.endpoint]) as cluster,
    ):
        await set_group(cluster, topic_name=QUEUE)
        assert await dead_letter_queue(cluster, GROUP) == DeadLetterQueue(QUEUE, False, None, None)


async def test_unavailable_partition_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_leader(
        cluster: ClusterClient, wanted: Mapping[Partition, int]
    ) -> dict[Partition, FoundOffset]:
        return dict.fromkeys(wanted, FoundOffset(ErrorCode.LEADER_NOT_AVAILABLE, -1, -1))

    monkeypatch.setattr(dead_letters, "list_offsets", without_leader)
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_topics(cluster, [NewTopic(QUEUE, 1, configs=ENABLED)])
        await set_group(cluster, topic_name=QUEUE)
        reason = "partition 0 is not available (LEADER_NOT_AVAILABLE)"
        found = await dead_letter_queue(cluster, GROUP)
        assert found == DeadLetterQueue(QUEUE, False, None, reason)


async def test_share_version_below_2_is_reported() -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await set_group(cluster, topic_name=QUEUE)
        (await cluster.any()).features["share.version"] = 1
        found = await dead_letter_queue(cluster, GROUP)
        assert found is not None
        assert found.problem == "share.version is 1; upgrade the feature to 2"


@pytest.mark.parametrize("hidden", [Resource.TOPIC, Resource.BROKER, Resource.GROUP])
async def test_settings_that_user_may_not_read_leave_problem_unknown(
    hidden: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(
        cluster: ClusterClient, kind: Resource, names: list[str], *, keys: Sequence[str]
    ) -> Any:
        if kind == hidden:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await describe_configs(cluster, kind, names, keys=keys)

    monkeypatch.setattr(dead_letters, "describe_configs", describe)
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_topics(cluster, [NewTopic(QUEUE, 1, configs=ENABLED)])
        await set_group(cluster, topic_name=QUEUE)
        found = await dead_letter_queue(cluster, GROUP)
        assert found is not None
        assert found.topic == (None if hidden == Resource.GROUP else QUEUE)
        assert found.problem is not None
        assert found.problem.startswith("unknown, because the settings of ")
        assert "CLUSTER_AUTHORIZATION_FAILED" in found.problem
