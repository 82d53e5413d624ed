"""Template data directories with known records, at several stages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.topics import DeleteRecordsRequest

from ..brokers import started
from ..wire import Topic, Wire, batch, connected, create_topic, delete_topic, produce

SETTINGS = {"log_segment_bytes": 1 << 20, "offsets_topic_num_partitions": 1}
SEGMENTED = {"internal.segment.bytes": "3000", "index.interval.bytes": "500"}
# Partitions per topic: with small segments, one short segment, an advanced log start, and
# recreated.
PARTITIONS = {"many": 2, "short": 2, "trimmed": 1, "again": 1}
BATCHES = 30

Key = tuple[str, int]
# The values that each partition serves, from its log start on.
Truth = dict[Key, list[bytes]]


@dataclass
class Templates:
    """The directories that damaged copies are made from.

    Attributes:
        clean: A directory after a clean stop.
        crashed: The same records, as a power cut leaves them.
        older: An earlier stage of the directory, after a clean stop.
        other: A directory of another cluster with the same topics.
        truth: The records of `clean` and `crashed`.
    """

    clean: Path
    crashed: Path
    older: Path
    other: Path
    truth: Truth = field(default_factory=dict)


def keys() -> Iterator[Key]:
    for topic, partitions in PARTITIONS.items():
        for index in range(partitions):
            yield topic, index


async def make_templates(root: Path) -> Templates:
    """Write records into directories below `root`."""
    made = Templates(root / "clean", root / "crashed", root / "older", root / "other")
    async with started(made.other, **SETTINGS) as broker:
        await _write(broker, {}, b"other")
    truth = made.truth
    async with started(made.clean, **SETTINGS) as broker:
        await _write(broker, truth, b"first")
    shutil.copytree(made.clean, made.older)
    async with started(made.clean, **SETTINGS) as broker, connected(broker.endpoint) as wire:
        await delete_topic(wire, "again")
        del truth["again", 0]
        await _write(broker, truth, b"second")
        await _trim(wire, 40)
        truth["trimmed", 0] = truth["trimmed", 0][40:]
        await broker.node.maintenance.log_manager_tasks.checkpoint()
        await _write(broker, truth, b"third")
        # Without the checkpoint, missing records look like the torn end of a power cut.
        await broker.node.maintenance.log_manager_tasks.checkpoint()
        async with broker.node.partitions.checkpoint_lock:  # checkpoints create and rename files
            shutil.copytree(made.clean, made.crashed, ignore=shutil.ignore_patterns(".lock"))
    return made


async def _write(broker: Broker, truth: Truth, stage: bytes) -> None:
    async with connected(broker.endpoint) as wire:
        for name, partitions in PARTITIONS.items():
            known = broker.node.cluster.topics.get(name)
            if known is None:
                configs = {} if name == "short" else SEGMENTED
                topic = await create_topic(wire, name, partitions, configs)
            else:
                topic = Topic(name, known.id)
            for index in range(partitions):
                truth.setdefault((name, index), []).extend(await _fill(wire, topic, index, stage))


async def _fill(wire: Wire, topic: Topic, index: int, stage: bytes) -> list[bytes]:
    written = []
    for number in range(2 if topic.name == "short" else BATCHES):
        value = b"%s %s-%d %d " % (stage, topic.name.encode(), index, number)
        row = await produce(wire, topic, batch([value, value * 20]), partition=index)
        assert row.error_code == 0, row
        written += [value, value * 20]
    return written


async def _trim(wire: Wire, offset: int) -> None:
    part = DeleteRecordsRequest.Partition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.Topic(name="trimmed", partitions=[part])
    response = await wire.ask(
        ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)
    )
    assert response.topics[0].partitions[0].error_code == 0
