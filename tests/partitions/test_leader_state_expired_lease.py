"""A leader with an expired lease acknowledges only replicated records."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.handlers.produce_operation import LIGHT_COMPRESSED_BYTES_MAX
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.runtime.heavy_work import HeavyWork

from ..brokers import started
from ..wire import batch, connected, create_topic, produce, produce_request, until


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


async def test_lease_that_expires_before_acks_1_rejects_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is stopped during the sync of the batch, for longer than its session."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a")
        replica = broker.node.partitions.named_replica("a", 0)
        async with broker.node.partitions.flusher.sync_lock:
            await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), acks=1))
            await until(lambda: replica.log.log_end_offset == 1)
            monkeypatch.setattr(type(broker.node.membership.lease), "may_be_over", lambda _: True)
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_lease_that_expires_during_validation_rejects_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validate = HeavyWork.run_in_steps
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "a")

        async def validate_slowly(*args: Any) -> Any:
            lease = type(broker.node.membership.lease)
            monkeypatch.setattr(lease, "may_be_over", lambda _: True)
            return await validate(*args)

        monkeypatch.setattr(HeavyWork, "run_in_steps", validate_slowly)
        heavy = batch([Random(1).randbytes(2 * LIGHT_COMPRESSED_BYTES_MAX)], codec=Codec.GZIP)
        row = await produce(wire, topic, heavy, acks=1)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


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
