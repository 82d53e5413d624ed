"""Data directories for the tests of log commands."""

from __future__ import annotations

from pathlib import Path

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.protocol.records import Record

from ..brokers import started
from ..wire import Wire, batch, connected, create_topic, produce, request

VALUE_BYTES = 60_000


FIRST = "00000000000000000000"


async def begin_transaction(wire: Wire) -> None:
    """Begin a transaction that has written nothing yet."""
    find = request(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=60_000)
    producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name="t", partitions=[0])],
    )
    await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)


async def write(directory: Path) -> None:
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(
            wire, "t", 1, {"segment.bytes": "1048576", "index.interval.bytes": "1000"}
        )
        init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000)
        producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 1, init)
        for number in range(60):
            records = [Record(b"k", b"v" * VALUE_BYTES, 1_700_000_000_000 + number)]
            row = await produce(
                wire,
                topic,
                batch(
                    records,
                    producer_id=producer.producer_id,
                    producer_epoch=0,
                    base_sequence=number,
                ),
            )
            assert row.error_code == 0
        await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
        part = OffsetCommitRequest.Partition(partition_index=0, committed_offset=7)
        rows = [OffsetCommitRequest.Topic(name="t", partitions=[part])]
        commit = OffsetCommitRequest(group_id="g", topics=rows)
        response = await wire.ask(ApiKey.OFFSET_COMMIT, 5, commit)
        assert response.topics[0].partitions[0].error_code == 0
        await begin_transaction(wire)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def last_nonempty_file(directory: Path, suffix: str) -> Path:
    return max(path for path in directory.glob(f"*{suffix}") if path.stat().st_size)
