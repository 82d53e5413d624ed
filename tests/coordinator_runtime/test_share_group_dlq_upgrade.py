"""Dead-letter queues on data directories that were written with share.version 1 (KIP-1191)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster.features import SHARE_VERSION

from ..brokers import started
from ..handlers.test_share_acknowledge_dead_letters import (
    DLQ,
    ENABLED,
    dead_letters,
    set_group,
    set_queue,
    set_share_version,
)
from ..sharing import ACCEPT, REJECT, RELEASE, ShareMember, shared_topic, wait_until_stored
from ..wire import Topic, Wire, batch, connected, create_topic, produce

# Directory of a node whose kbroker supported only level 1. A share group has accepted record 0 of
# the topic t, rejected record 1 and released record 2.
WRITTEN_BY_OLDER_VERSION = Path(__file__).parents[1] / "data" / "kbroker-share-version-1"


async def write_at_level_1(directory: Path) -> None:
    """Write a directory like `WRITTEN_BY_OLDER_VERSION` with this version."""
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        await set_share_version(wire, 1)
        topic = await shared_topic(broker, wire)
        await produce(wire, topic, batch([b"%d" % n for n in range(10)]))
        member = ShareMember(wire, topic)
        await member.acquire()
        await member.acknowledge_partition((0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE))


@pytest.fixture(params=["older version", "this version"])
async def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written = tmp_path / "data"
    if request.param == "older version":
        shutil.copytree(WRITTEN_BY_OLDER_VERSION, written)
    else:
        await write_at_level_1(written)
    return written


def topic_of(broker: Broker, name: str) -> Topic:
    return Topic(name, broker.node.cluster.topics[name].id)


async def reject_next(broker: Broker, wire: Wire, offset: int) -> None:
    """Reject a record, which must be the next record of the group."""
    member = ShareMember(wire, topic_of(broker, "t"))
    acquired = await member.acquire()
    assert acquired[0][0] == offset
    row = await member.acknowledge_partition((offset, offset, REJECT))
    assert not row.error_code
    await member.close()


async def letters(broker: Broker, wire: Wire) -> list[int]:
    """Return the source offsets of the records in the queue."""
    found = await dead_letters(broker, wire, topic_of(broker, DLQ))
    return [int(dict(each.headers)["__dlq.errors.offset"] or b"") for each in found]


async def test_level_is_upgraded_and_downgraded_with_configured_queue(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_forever(*args: Any) -> None:
        await trio.sleep_forever()

    async with started(directory) as broker, connected(broker.endpoint) as wire:
        assert broker.node.cluster.features[SHARE_VERSION] == 1
        await create_topic(wire, DLQ, 1, ENABLED)
        await set_queue(wire)
        await set_group(wire, "share.delivery.count.limit", "10")
        await reject_next(broker, wire, 2)
        assert await letters(broker, wire) == [], "level 1 has no dead-letter queues"
        await set_share_version(wire, 2)
        await reject_next(broker, wire, 3)
        assert await letters(broker, wire) == [3]
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        assert broker.node.cluster.features[SHARE_VERSION] == 2
        await reject_next(broker, wire, 4)
        assert await letters(broker, wire) == [3, 4]
        monkeypatch.setattr(broker.node.share.dlq, "_try_to_write", wait_forever)
        await reject_next(broker, wire, 5)
        await set_share_version(wire, 1)
        await reject_next(broker, wire, 6)
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        assert broker.node.cluster.features[SHARE_VERSION] == 1
        await reject_next(broker, wire, 7)
        assert await letters(broker, wire) == [3, 4, 5], "record 5 waited for the queue at level 2"
        await set_share_version(wire, 2)
        await reject_next(broker, wire, 8)
        assert await letters(broker, wire) == [3, 4, 5, 8]
        await wait_until_stored(broker.node)
