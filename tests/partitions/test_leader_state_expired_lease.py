"""A leader with an expired lease acknowledges only replicated records."""

from __future__ import annotations

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from ..brokers import started
from ..wire import batch, connected, create_topic, produce, produce_request


async def test_leader_with_expired_lease_accepts_only_acks_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a")
        lease = type(broker.node.membership.lease)
        assert (await produce(wire, topic, batch(), acks=1)).error_code == 0
        with monkeypatch.context() as patched:
            patched.setattr(lease, "may_be_over", lambda _: True)
            row = await produce(wire, topic, batch(), acks=1)
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await produce(wire, topic, batch(), acks=-1)).base_offset == 1
        assert (await produce(wire, topic, batch(), acks=1)).base_offset == 2


async def test_leader_with_expired_lease_accepts_all_acks_if_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        started(expired_lease_acks_enable=True) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "a")
        monkeypatch.setattr(type(broker.node.membership.lease), "may_be_over", lambda _: True)
        assert (await produce(wire, topic, batch(), acks=1)).error_code == 0


async def test_acks_0_producer_is_disconnected_by_a_leader_with_expired_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a")
        lease = type(broker.node.membership.lease)
        monkeypatch.setattr(lease, "may_be_over", lambda _: True)
        await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), acks=0), answered=False)
        await wire.wait_closed()
