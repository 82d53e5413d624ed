"""An idempotent producer: no record is lost or duplicated if responses are lost or a broker stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.producer import (
    BATCH_BYTES_MAX,
    SEQUENCE_MASK,
    Identity,
    Producer,
    Written,
    new_identity,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import Record
from kbroker.testing import LocalBroker

RECORDS = [Record(b"k", b"%d" % number, 1_000 + number) for number in range(5)]


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"t": 2}) as opened:
        yield opened


def write(broker: LocalBroker, *, idempotent: bool = True, times: int = 1) -> list[Written]:
    """Write RECORDS to both partitions `times` times."""

    async def main() -> list[Written]:
        async with open_cluster([Endpoint.parse(broker.bootstrap_servers)]) as cluster:
            identity = await new_identity(cluster) if idempotent else None
            producer = Producer(cluster, identity=identity)
            return [
                one
                for _ in range(times)
                for one in await producer.write({("t", 0): RECORDS, ("t", 1): RECORDS})
            ]

    return trio.run(main)


def values(broker: LocalBroker, partition: int) -> list[bytes | None]:
    found = [each for each in broker.records("t") if each.partition == partition]
    return [each.value for each in sorted(found, key=lambda each: each.offset)]


VALUES = [record.value for record in RECORDS]


def test_sequence_numbers_continue_across_batches(broker: LocalBroker) -> None:
    written = write(broker, times=3)
    assert [each.header.base_sequence for each in written if each.partition[1] == 1] == [0, 5, 10]
    assert [each.base_offset for each in written if each.partition[1] == 1] == [0, 5, 10]
    assert [record.offset for record in written[-1].placed] == [10, 11, 12, 13, 14]
    assert values(broker, 0) == values(broker, 1) == VALUES * 3


@pytest.mark.parametrize("at", ["before", "after"])
def test_idempotent_producer_retries_lost_response_without_duplicate(
    broker: LocalBroker, at: str
) -> None:
    fault = broker.fault("Produce", at=at)
    fault.disconnect()
    write(broker, times=2)
    assert fault.hits == 1
    assert values(broker, 0) == values(broker, 1) == VALUES * 2


def test_lost_response_raises_without_identity(broker: LocalBroker) -> None:
    broker.fault("Produce", at="after").disconnect()
    with pytest.raises((OSError, ExceptionGroup)):
        write(broker, idempotent=False)


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"])
def test_retriable_error_is_retried(broker: LocalBroker, code: str) -> None:
    fault = broker.fault("Produce", error=code, at="after", topic="t")
    write(broker, times=2)
    assert fault.hits == 1
    assert values(broker, 0) == values(broker, 1) == VALUES * 2


def test_permanent_error_is_raised(broker: LocalBroker) -> None:
    broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic="t")
    with pytest.raises(KafkaError) as caught:
        write(broker)
    assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_unreachable_broker_is_retried_with_identity_only(tmp_path: Path) -> None:
    with LocalBroker(topics={"t": 2}, data_dir=str(tmp_path)) as broker:
        address = Endpoint.parse(broker.bootstrap_servers)

        async def main() -> None:
            async with open_cluster([address]) as cluster:
                producer = Producer(cluster, identity=await new_identity(cluster))
                await producer.write({("t", 0): RECORDS})
                await trio.to_thread.run_sync(broker.stop)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(producer.write, {("t", 0): RECORDS})
                    await trio.sleep(0.3)
                    await trio.to_thread.run_sync(broker.start)

        trio.run(main)
        assert values(broker, 0) == VALUES * 2


def test_sequence_number_wraps_in_large_batches(broker: LocalBroker) -> None:
    big = [Record(None, b"x" * (BATCH_BYTES_MAX // 3), at) for at in range(7)]

    async def main() -> list[Written]:
        async with open_cluster([Endpoint.parse(broker.bootstrap_servers)]) as cluster:
            identity = await new_identity(cluster)
            identity.sequences["t", 0] = SEQUENCE_MASK - 2
            return await Producer(cluster, identity=identity).write({("t", 0): big})

    written = trio.run(main)
    assert [len(each.records) for each in written] == [2, 2, 2, 1]
    sequences = [each.header.base_sequence for each in written]
    assert sequences == [SEQUENCE_MASK - 2, SEQUENCE_MASK, 1, 3]
    assert [each.header.last_sequence for each in written] == [SEQUENCE_MASK - 1, 0, 2, 3]


def test_identity_requires_acks_all() -> None:
    unused = ClusterClient([], "x", direct=False)
    with pytest.raises(ValueError, match="requires acks=-1"):
        Producer(unused, acks=1, identity=Identity(1, 0))


def test_failed_write_names_the_batches_that_were_written(broker: LocalBroker) -> None:
    """Without them, a caller that writes everything again would write these records twice."""
    large = Record(b"k", bytes(BATCH_BYTES_MAX * 2))

    async def main() -> list[tuple[int, int]]:
        async with open_cluster([Endpoint.parse(broker.bootstrap_servers)]) as cluster:
            producer = Producer(cluster)
            for records in ({("t", 0): [large], ("t", 1): RECORDS}, {("t", 0): [large]}):
                with pytest.raises(KafkaError) as caught:
                    await producer.write(records)
                assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
                found.append(
                    [(one.partition[1], len(one.records)) for one in producer.written_before_error]
                )
            await producer.write({("t", 1): RECORDS})
            assert not producer.written_before_error
        return found[0]

    found: list[list[tuple[int, int]]] = []
    assert trio.run(main) == [(1, 5)]
    assert found[1] == []
    assert values(broker, 0) == []
    assert values(broker, 1) == VALUES * 2
