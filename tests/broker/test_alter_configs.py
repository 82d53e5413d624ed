"""IncrementalAlterConfigs and AlterConfigs: what is accepted, what is refused, what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from ..brokers import started
from ..wire import Wire, connected, create_topic

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
Changes = tuple[str, int, str | None]


def incremental(
    *changes: Changes, kind: int = TOPIC, name: str = "t", validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    cls = IncrementalAlterConfigsRequest
    rows = [cls.Config(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = cls.Resource(resource_type=kind, resource_name=name, configs=rows)
    return cls(resources=[resource], validate_only=validate_only)


async def change(wire: Wire, *changes: Changes, version: int = 1, **fields: Any) -> Any:
    ask = incremental(*changes, **fields)
    (row,) = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, ask)).responses
    return row


async def replace(
    wire: Wire,
    values: dict[str, str | None],
    *,
    kind: int = TOPIC,
    name: str = "t",
    version: int = 2,
    validate_only: bool = False,
) -> Any:
    cls = AlterConfigsRequest
    rows = [cls.Config(name=key, value=value) for key, value in values.items()]
    resource = cls.Resource(resource_type=kind, resource_name=name, configs=rows)
    ask = cls(resources=[resource], validate_only=validate_only)
    (row,) = (await wire.ask(ApiKey.ALTER_CONFIGS, version, ask)).responses
    return row


async def own(wire: Wire, kind: int = TOPIC, name: str = "t") -> dict[str, str | None]:
    """The settings that a resource was given itself."""
    resource = DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name)
    ask = DescribeConfigsRequest(resources=[resource])
    (row,) = (await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)).results
    assert row.error_code == 0, row
    return {each.name: each.value for each in row.configs if each.config_source in (1, 2, 3)}


# -- topics


@pytest.mark.parametrize("version", [0, 1])
async def test_single_settings_of_a_topic_change(wire: Wire, version: int) -> None:
    await create_topic(wire, "t", configs={"retention.ms": "1000", "segment.ms": "7"})
    row = await change(
        wire,
        ("retention.ms", SET, "2000"),
        ("segment.ms", DELETE, None),
        ("flush.ms", DELETE, None),
        version=version,
    )
    assert (row.error_code, row.error_message) == (0, None)
    assert (row.resource_type, row.resource_name) == (TOPIC, "t")
    assert await own(wire) == {"retention.ms": "2000"}


async def test_items_of_a_list_come_and_go(wire: Wire) -> None:
    """Without an own value the items are those of the default; what is there already stays."""
    await create_topic(wire, "t")
    steps = [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact,delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
    ]
    for operation, value, policy in steps:
        row = await change(wire, ("cleanup.policy", operation, value))
        assert row.error_code == 0, row
        assert await own(wire) == {"cleanup.policy": policy}


@pytest.mark.parametrize("version", range(3))
async def test_replacing_unsets_what_is_left_out(wire: Wire, version: int) -> None:
    await create_topic(wire, "t", configs={"retention.ms": "1000", "segment.ms": "7"})
    row = await replace(wire, {"flush.ms": "3", "segment.ms": "8"}, version=version)
    assert (row.error_code, row.error_message) == (0, None)
    assert await own(wire) == {"flush.ms": "3", "segment.ms": "8"}
    await replace(wire, {}, version=version)
    assert await own(wire) == {}


async def test_only_looking_whether_it_would_work(wire: Wire) -> None:
    await create_topic(wire, "t", configs={"retention.ms": "1000"})
    assert (await change(wire, ("retention.ms", SET, "5"), validate_only=True)).error_code == 0
    assert (await replace(wire, {}, validate_only=True)).error_code == 0
    bad = await change(wire, ("retention.ms", SET, "never"), validate_only=True)
    assert bad.error_code == ErrorCode.INVALID_CONFIG
    assert await own(wire) == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "never")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("min.compaction.lag.ms", SET, "5"), ("max.compaction.lag.ms", SET, "4")], 40),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_one_bad_change_applies_none(
    wire: Wire, changes: list[Changes], code: ErrorCode
) -> None:
    await create_topic(wire, "t", configs={"segment.ms": "7"})
    row = await change(wire, ("segment.ms", SET, "8"), *changes)
    assert row.error_code == code
    assert row.error_message
    assert await own(wire) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("values", "code"),
    [({"no.such": "1"}, 40), ({"retention.ms": "x"}, 40), ({"retention.ms": None}, 42)],
)
async def test_bad_settings_replace_nothing(
    wire: Wire, values: dict[str, str | None], code: int
) -> None:
    await create_topic(wire, "t", configs={"segment.ms": "7"})
    row = await replace(wire, {"flush.ms": "1", **values})
    assert row.error_code == code
    assert row.error_message
    assert await own(wire) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (3, "t", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_does_not_exist_cannot_change(
    wire: Wire, kind: int, name: str, code: ErrorCode
) -> None:
    assert (await change(wire, ("flush.ms", SET, "1"), kind=kind, name=name)).error_code == code
    assert (await replace(wire, {"flush.ms": "1"}, kind=kind, name=name)).error_code == code


async def test_a_resource_stands_once_in_a_request(wire: Wire) -> None:
    """Others of the same request change all the same."""
    await create_topic(wire, "t")
    await create_topic(wire, "u")
    resources = [
        incremental(("flush.ms", SET, "9"), name=name).resources[0] for name in ("t", "u", "t")
    ]
    ask = IncrementalAlterConfigsRequest(resources=resources)
    rows = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    codes = [(row.resource_name, row.error_code) for row in rows]
    assert codes == [("t", ErrorCode.INVALID_REQUEST), ("u", 0), ("t", ErrorCode.INVALID_REQUEST)]
    assert (await own(wire), await own(wire, name="u")) == ({}, {"flush.ms": "9"})


async def test_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await change(wire, ("retention.ms", SET, "12345"))
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await own(wire) == {"retention.ms": "12345"}
        assert broker.node.named_replica("t", 0).config.retention_ms == 12345
