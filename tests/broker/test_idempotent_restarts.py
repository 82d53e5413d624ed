"""Tests of retries of an idempotent producer after every kind of restart.

A producer may have five requests without a response. Each retry gets the offset of the original
batch, and nothing is stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.storage.crash_files import MODES, CrashFiles, Mode

from ..brokers import started, started_on
from ..handlers.test_log_dirs import move, wait_until_moved
from ..replication.harness import place_topic, until_leader, wire_to
from ..wire import (
    Topic,
    Wire,
    connected,
    create_topic,
    fetch,
    produce,
    produce_request,
    request,
    sequenced,
    until,
    values_of,
)

# Maximum number of requests in flight (max.in.flight.requests.per.connection).
IN_FLIGHT = 5
DATA = "/data"


@dataclass
class Producer:
    """Batches of two records each that a producer has written to a topic, by offset."""

    topic: Topic
    id: int
    sent: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    async def create(cls, wire: Wire, topic: Topic) -> Producer:
        """Return a producer with an ID from the broker."""
        message = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=60_000)
        response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)
        assert response.error_code == 0
        return cls(topic, response.producer_id)

    async def send(self, wire: Wire, count: int = 1) -> None:
        """Send new batches without waiting for responses."""
        numbers = range(len(self.sent), len(self.sent) + count)
        new = [self._batch(number) for number in numbers]
        rows = await self._produce_all(wire, new)
        assert [error for error, _ in rows] == [0] * count
        self.sent |= dict(zip((offset for _, offset in rows), new, strict=True))

    async def check(self, wire: Wire) -> None:
        """Check that only the last five batches are known, and a new one is stored."""
        retries = list(self.sent.items())[-IN_FLIGHT:]
        for _ in range(2):
            rows = await self._produce_all(wire, [each for _, each in retries])
            assert rows == [(0, offset) for offset, _ in retries]
        too_old = list(self.sent.values())[-IN_FLIGHT - 1]
        ((error, _),) = await self._produce_all(wire, [too_old])
        assert error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await self.send(wire)
        *_, last, new = self.sent
        assert new == last + 2, "no batch was stored in between"

    @property
    def written(self) -> list[bytes]:
        """Return the values of the producer's records."""
        return [value for number in range(len(self.sent)) for value in self._values(number)]

    def _values(self, number: int) -> list[bytes]:
        return [b"%d" % number, b"%d and a half" % number]

    def _batch(self, number: int) -> bytes:
        return sequenced(self.id, 2 * number, self._values(number))

    async def _produce_all(self, wire: Wire, batches: list[bytes]) -> list[tuple[int, int]]:
        """Return error and offset of each batch, all sent before the first response."""
        for each in batches:
            await wire.send(ApiKey.PRODUCE, 9, produce_request(self.topic, each))
        responses = [await wire.receive() for _ in batches]
        rows = [response.responses[0].partition_responses[0] for response in responses]
        return [(row.error_code, row.base_offset) for row in rows]


async def start_producer(wire: Wire, topic: Topic) -> Producer:
    """Return a producer that has written seven batches, mixed with batches of another one."""
    producer, other = await Producer.create(wire, topic), await Producer.create(wire, topic)
    await producer.send(wire, 2)
    for sequence in range(2):
        records = sequenced(other.id, sequence)
        assert (await produce(wire, topic, records)).error_code == 0
        await producer.send(wire, 3)
    return producer


async def check(producer: Producer, wire: Wire) -> None:
    """Check that all batches are stored exactly once."""
    await producer.check(wire)
    values = values_of(await fetch(wire, producer.topic))
    assert [each for each in values if each != b"x"] == producer.written


async def test_idempotent_retry_is_recognized_after_clean_stops(tmp_path: Path) -> None:
    """The second restart checks that the state from the first start is kept."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        producer = await start_producer(wire, await create_topic(wire, "t"))
    for _ in range(2):
        async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
            assert broker.node.partitions.logs.clean
            await check(producer, wire)


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("checkpoint", [True, False])
async def test_idempotent_retry_is_recognized_after_crash(
    mode: Mode | None, checkpoint: bool
) -> None:
    """The process or the power fails (`mode`), with or without a snapshot on disk."""
    files = CrashFiles()
    async with started_on(files, DATA) as broker, connected(broker.endpoint) as wire:
        producer = await start_producer(wire, await create_topic(wire, "t"))
        if checkpoint:
            broker.node.partitions.named_replica("t", 0).log.save()
            broker.node.partitions.logs.checkpoint(0).run()
        await producer.send(wire, 2)
        left = files.killed() if mode is None else files.crashed(mode, 0)
    async with started_on(left, DATA) as broker, connected(broker.endpoint) as wire:
        assert not broker.node.partitions.logs.clean
        await check(producer, wire)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [True, False])
async def test_idempotent_retry_is_recognized_after_rolling_restart(
    tmp_path: Path, crash: bool
) -> None:
    """Each of three nodes becomes leader; the last ones have been restarted before."""
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        async with wire_to(broker.local_node(1)) as wire:
            producer = await start_producer(wire, topic)
        leaders = []
        for _ in range(4):
            leader = await until_leader(broker, "t", {1, 2, 3})
            local = broker.local_node(leader)
            await (local.crash() if crash else local.stop())
            leaders.append(await until_leader(broker, "t", {1, 2, 3} - {leader}))
            async with wire_to(broker.local_node(leaders[-1])) as wire:
                await check(producer, wire)
            await local.start()
            await wait_until_in_sync(broker)
        assert len(set(leaders)) > 1


async def wait_until_in_sync(broker: Broker) -> None:
    def is_in_sync() -> bool:
        partition = broker.running().cluster.partition("t", 0)
        return partition is not None and set(partition.isr) == {1, 2, 3}

    await until(is_in_sync)


@pytest.mark.parametrize("crash", [True, False])
async def test_idempotent_retry_is_recognized_after_move_to_other_directory(crash: bool) -> None:
    """The partition moves, moves back, and moves again before the broker restarts."""
    files, directories = CrashFiles(), ["/one", "/two"]
    async with started_on(files, directories) as broker, connected(broker.endpoint) as wire:
        producer = await start_producer(wire, await create_topic(wire, "t"))
        for directory in ("/two", "/one", "/two"):
            assert await move(wire, directory, ("t", [0])) == [0]
            await wait_until_moved(wire, ("t", 0), Path(directory))
            await check(producer, wire)
        left = files.killed()
    async with started_on(left if crash else files, directories) as broker:
        assert broker.node.partitions.logs.clean != crash
        async with connected(broker.endpoint) as wire:
            await check(producer, wire)


async def test_idempotent_retry_is_recognized_after_move_without_records(tmp_path: Path) -> None:
    """The records are deleted, but the producer state is kept."""
    directories = [tmp_path / "one", tmp_path / "two"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        producer = await start_producer(wire, await create_topic(wire, "t"))
        replica = broker.node.partitions.named_replica("t", 0)
        replica.delete_records_before(replica.log.log_end_offset)
        assert await move(wire, directories[1], ("t", [0])) == [0]
        await wait_until_moved(wire, ("t", 0), directories[1])
        await producer.check(wire)
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        await producer.check(wire)
