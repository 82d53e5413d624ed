"""Replication quotas of throttled replicas (KIP-73)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ..brokers import started
from ..wire import ANSWER_SECONDS, until
from .harness import Links, links, log_on, place_topic, send, until_equal

__all__ = ["links"]

RECORD = b"x" * 1000


LEADER = ("leader.replication.throttled.rate", "leader.replication.throttled.replicas")
FOLLOWER = ("follower.replication.throttled.rate", "follower.replication.throttled.replicas")


@pytest.mark.slow
@pytest.mark.parametrize("names", [LEADER, FOLLOWER])
async def test_throttled_replica_outside_the_isr_waits_for_its_quota(
    links: Links, names: tuple[str, str]
) -> None:
    rate: dict[str, Any] = {names[0]: 100}
    named = {names[1]: "0:1,0:2"}
    async with started(
        nodes=2, replica_lag_time_max_ms=200, replica_fetch_max_bytes=1000, **rate
    ) as broker:
        slow = await place_topic(broker, "slow", 1, 2, configs=named)
        free = await place_topic(broker, "free", 1, 2)
        with links.holding(2):
            for topic in (slow, free):
                for _ in range(20):
                    await send(broker, 1, topic, RECORD)
        await until_equal(broker, "free", 1, 2)
        await trio.sleep(0.2)
        assert log_on(broker, 2, "slow").log_end_offset < 10
        await broker.running().cluster.alter_topic_configs(
            broker.running().cluster.topics["slow"], {}, cause="a test"
        )
        await until_equal(broker, "slow", 1, 2)


async def test_in_sync_replicas_are_never_throttled() -> None:
    rates: dict[str, Any] = {LEADER[0]: 100, FOLLOWER[0]: 100}
    named = {LEADER[1]: "*", FOLLOWER[1]: "*"}
    async with started(nodes=2, **rates) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs=named)
        with trio.fail_after(ANSWER_SECONDS):
            for _ in range(50):
                await send(broker, 1, topic, RECORD)
        await until(lambda: log_on(broker, 2, "t").high_watermark == 50)
