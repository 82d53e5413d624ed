"""Invalid names of topics and groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.runtime.log_output import TextFormatter

from ..brokers import started
from ..wire import Topic, Wire, batch, connected, create_topic, produce, request

BAD_NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "250 characters": "x" * 250,
    "slash": "a/b",
    "upwards": "../../../../tmp/evil",
    "absolute": "/tmp/evil",
    "backslash": "a\\b",
    "nul": "a\x00b",
    "line break": "a\nb",
    "blank": "a b",
    "umlaut": "ä",
    "snowman": "☃",
    "colon": "a:b",
    "percent": "%s",
    "null-like control": "\x1b[2J",
}
GOOD_NAMES = ["a", "A-b_c.9", "x" * 249, "...", "-", "_", "0"]


async def create(wire: Wire, name: str, **fields: Any) -> Any:
    cls: Any = messages.request_class(ApiKey.CREATE_TOPICS)
    row = cls.Topic(name=name, num_partitions=1, replication_factor=1)
    response = await wire.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=[row], **fields))
    return response.topics[0]


@pytest.mark.parametrize("case", BAD_NAMES)
async def test_invalid_topic_name_is_rejected(tmp_path: Path, case: str) -> None:
    """Every way to create a topic returns error 17, and no file appears."""
    name = BAD_NAMES[case]
    data = tmp_path / "data"
    async with started(data) as broker, connected(broker.endpoint) as wire:
        before = names_below(tmp_path)
        for validate_only in (False, True):
            row = await create(wire, name, validate_only=validate_only)
            assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert row.error_message
        cls: Any = messages.request_class(ApiKey.METADATA)
        for version in (1, 4, 9, 12):
            ask = cls(topics=[cls.Topic(name=name)], allow_auto_topic_creation=True)
            row = (await wire.ask(ApiKey.METADATA, version, ask)).topics[0]
            assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        row = await produce(wire, Topic(name), batch())
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.node.cluster.topics
        assert names_below(tmp_path) == before


def names_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


@pytest.mark.parametrize("name", GOOD_NAMES)
async def test_valid_topic_name_survives_restart(tmp_path: Path, name: str) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, name)
        assert (await produce(wire, topic, batch())).error_code == 0
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert (await produce(wire, topic, batch())).base_offset == 1


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a._b", "a__b")])
async def test_colliding_topic_names_are_rejected(wire: Wire, first: str, second: str) -> None:
    """'.' and '_' count as equal; after deleting one topic the other can be created."""
    await create_topic(wire, first)
    assert (await create(wire, second)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    ask = request(ApiKey.DELETE_TOPICS, topic_names=[first])
    await wire.ask(ApiKey.DELETE_TOPICS, 4, ask)
    assert (await create(wire, second)).error_code == 0


@pytest.mark.parametrize("group", ["", "a/b", "../..", "\x00", "ä☃", "x" * 30_000, "a\nb"])
async def test_only_empty_group_id_is_rejected(broker: Broker, wire: Wire, group: str) -> None:
    """Every non-empty name is a valid group ID."""
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    cls: Any = messages.request_class(ApiKey.JOIN_GROUP)
    ask = cls(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[cls.Protocol(name="range", metadata=b"")],
    )
    joined = await wire.ask(ApiKey.JOIN_GROUP, 1, ask)
    assert joined.error_code == (0 if group else ErrorCode.INVALID_GROUP_ID)
    assert broker.node.context.error_log.unhandled_errors == 0


async def test_names_cannot_forge_log_lines(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A group ID and a member's reason are each logged on one line."""
    caplog.set_level("DEBUG")
    group = "g\n2026-01-01 ERROR it is all gone"
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    cls: Any = messages.request_class(ApiKey.JOIN_GROUP)
    ask = cls(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id="i\r\n",
        protocol_type="consumer",
        protocols=[cls.Protocol(name="range", metadata=b"")],
        reason="because\nof this",
    )
    await wire.ask(ApiKey.JOIN_GROUP, 8, ask)
    lines = [TextFormatter("%(message)s").format(record) for record in caplog.records]
    assert any("all gone" in line for line in lines)
    assert not any("\n" in line or "\r" in line for line in lines)
