"""Renewal of leader epochs that are lower than those of the records."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kbroker.partitions.epoch_renewal import RETRY_BACKOFF_SECONDS, EpochRenewal
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..cluster.members import TOPIC, make_topic, members, wait_until_settled

PARTITIONS = 20


async def test_failed_renewals_share_one_pause(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.autojump_threshold = 0
    async with members(1) as (member,), trio.open_nursery() as nursery:
        await make_topic(member, *([member.id],) * PARTITIONS)
        cluster = member.cluster
        renew = cluster.renew_leader
        failed: set[int] = set()

        async def fail_once(name: str, index: int, *, after_epoch: int = 0, cause: str) -> None:
            if index not in failed:
                failed.add(index)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            await renew(name, index, after_epoch=after_epoch, cause=cause)

        monkeypatch.setattr(cluster, "renew_leader", fail_once)
        renewal = EpochRenewal(cluster)
        for index in range(PARTITIONS):
            renewal.request(cluster.topics[TOPIC], index, 7)
        nursery.start_soon(renewal.run)
        await trio.sleep(1.5 * RETRY_BACKOFF_SECONDS)
        await wait_until_settled()
        nursery.cancel_scope.cancel()
    epochs = {each.leader_epoch for each in cluster.topics[TOPIC].partitions}
    assert len(failed) == PARTITIONS
    assert epochs == {8}
