"""Tests of IncrementalAlterConfigs and AlterConfigs: accepted, rejected and stored settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.cluster import ConfigResource, ResourceType
from kbroker.handlers.config_resources import (
    NAMED_BYTES_MAX,
    ClientMetricsResource,
    GroupResource,
    NamedResource,
)
from kbroker.handlers.log_levels import own_levels, set_levels
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from ..brokers import started
from ..wire import Topic, Wire, batch, connected, create_topic, produce, request

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
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


async def describe(wire: Wire, kind: int, name: str) -> dict[str, Any]:
    """Return all settings of a resource by name."""
    resource = DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name)
    ask = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (row,) = (await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)).results
    assert (row.error_code, row.error_message) == (0, ""), row
    return {each.name: each for each in row.configs}


async def dynamic_settings(wire: Wire, kind: int = TOPIC, name: str = "t") -> dict[str, str | None]:
    """Return the dynamic settings of the resource itself."""
    rows = await describe(wire, kind, name)
    return {key: row.value for key, row in rows.items() if row.config_source in (1, 2, 3, 7, 8)}


# -- topics


@pytest.mark.parametrize("version", [0, 1])
async def test_single_topic_settings_can_be_set_and_deleted(wire: Wire, version: int) -> None:
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
    assert await dynamic_settings(wire) == {"retention.ms": "2000"}


async def test_list_items_can_be_appended_and_subtracted(wire: Wire) -> None:
    """Without a value of its own, the topic starts from the default; existing items stay."""
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
        assert await dynamic_settings(wire) == {"cleanup.policy": policy}


@pytest.mark.parametrize("version", range(3))
async def test_replacing_settings_unsets_omitted_ones(wire: Wire, version: int) -> None:
    await create_topic(wire, "t", configs={"retention.ms": "1000", "segment.ms": "7"})
    row = await replace(wire, {"flush.ms": "3", "segment.ms": "8"}, version=version)
    assert (row.error_code, row.error_message) == (0, None)
    assert await dynamic_settings(wire) == {"flush.ms": "3", "segment.ms": "8"}
    await replace(wire, {}, version=version)
    assert await dynamic_settings(wire) == {}


async def test_validate_only_changes_nothing(wire: Wire) -> None:
    await create_topic(wire, "t", configs={"retention.ms": "1000"})
    assert (await change(wire, ("retention.ms", SET, "5"), validate_only=True)).error_code == 0
    assert (await replace(wire, {}, validate_only=True)).error_code == 0
    bad = await change(wire, ("retention.ms", SET, "never"), validate_only=True)
    assert bad.error_code == ErrorCode.INVALID_CONFIG
    assert await dynamic_settings(wire) == {"retention.ms": "1000"}


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
async def test_one_invalid_change_rejects_all_changes_of_resource(
    wire: Wire, changes: list[Changes], code: ErrorCode
) -> None:
    await create_topic(wire, "t", configs={"segment.ms": "7"})
    row = await change(wire, ("segment.ms", SET, "8"), *changes)
    assert row.error_code == code
    assert row.error_message
    assert await dynamic_settings(wire) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("values", "code"),
    [({"no.such": "1"}, 40), ({"retention.ms": "x"}, 40), ({"retention.ms": None}, 42)],
)
async def test_invalid_replacement_changes_nothing(
    wire: Wire, values: dict[str, str | None], code: int
) -> None:
    await create_topic(wire, "t", configs={"segment.ms": "7"})
    row = await replace(wire, {"flush.ms": "1", **values})
    assert row.error_code == code
    assert row.error_message
    assert await dynamic_settings(wire) == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (3, "t", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_unknown_resources_cannot_be_altered(
    wire: Wire, kind: int, name: str, code: ErrorCode
) -> None:
    assert (await change(wire, ("flush.ms", SET, "1"), kind=kind, name=name)).error_code == code
    assert (await replace(wire, {"flush.ms": "1"}, kind=kind, name=name)).error_code == code


@pytest.mark.parametrize("name", ["missing", "a b"])
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (("flush.ms", APPEND, "1"), {"missing": 40, "a b": 40}),
        (("no.such", SET, "1"), {"missing": 40, "a b": 17}),
        (("flush.ms", SET, "x"), {"missing": 40, "a b": 17}),
        (("flush.ms", SET, "1"), {"missing": 3, "a b": 17}),
    ],
)
async def test_invalid_settings_are_reported_before_missing_topic(
    wire: Wire, name: str, step: Changes, code: dict[str, int]
) -> None:
    assert (await change(wire, step, name=name)).error_code == code[name]


async def test_resource_named_twice_is_rejected(wire: Wire) -> None:
    """Other resources of the same request are altered."""
    await create_topic(wire, "t")
    await create_topic(wire, "u")
    resources = [
        incremental(("flush.ms", SET, "9"), name=name).resources[0] for name in ("t", "u", "t")
    ]
    ask = IncrementalAlterConfigsRequest(resources=resources)
    rows = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    codes = [(row.resource_name, row.error_code) for row in rows]
    assert codes == [("t", ErrorCode.INVALID_REQUEST), ("u", 0), ("t", ErrorCode.INVALID_REQUEST)]
    assert (await dynamic_settings(wire), await dynamic_settings(wire, name="u")) == (
        {},
        {"flush.ms": "9"},
    )


async def test_list_longer_than_encodable_string_is_rejected(wire: Wire) -> None:
    await create_topic(wire, "t")
    name = "leader.replication.throttled.replicas"
    items = [",".join(f"{i}:1" for i in range(first, first + 3000)) for first in (0, 3000, 6000)]
    codes = [(await change(wire, (name, APPEND, each))).error_code for each in items]
    assert codes == [0, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_CONFIG]
    assert await dynamic_settings(wire) == {name: items[0]}


async def test_number_of_settings_per_resource_is_bounded(wire: Wire) -> None:
    for count, code in ((1001, ErrorCode.INVALID_CONFIG), (1000, 0)):
        names = [f"listener.name.l{i}.ssl.protocol" for i in range(count)]
        row = await change(wire, *((each, SET, "x") for each in names), kind=BROKER, name="1")
        assert row.error_code == code


async def test_changed_settings_are_logged_without_values(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker")
    settings = {"sasl.jaas.config": "s3cret", "log.retention.ms": "5"}
    await replace(wire, {**settings}, kind=BROKER, name="1")
    await replace(wire, {"log.retention.ms": "6"}, kind=BROKER, name="1")
    logged = [
        each.getMessage()
        for each in caplog.records
        if each.name == "kbroker.handlers.config_resources"
    ]
    assert logged == ["settings changed by test of '1': log.retention.ms, sasl.jaas.config"] * 2
    assert "s3cret" not in caplog.text


async def test_topic_settings_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await change(wire, ("retention.ms", SET, "12345"))
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await dynamic_settings(wire) == {"retention.ms": "12345"}
        assert broker.node.partitions.named_replica("t", 0).config.retention_ms == 12345


# -- brokers


async def test_broker_setting_overrides_cluster_default(wire: Wire) -> None:
    """Dynamic settings of the broker and of the cluster override the node's static settings."""
    name = "message.max.bytes"
    assert (await change(wire, (name, SET, "30"), kind=BROKER, name="1")).error_code == 0
    assert (await change(wire, (name, SET, "20"), kind=BROKER, name="")).error_code == 0
    entry = (await describe(wire, BROKER, "1"))[name]
    assert (entry.value, entry.config_source, entry.read_only) == ("30", 2, False)
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("30", 2),
        ("20", 3),
        ("1048588", 5),
    ]
    assert await dynamic_settings(wire, BROKER, "") == {name: "20"}
    await change(wire, (name, DELETE, None), kind=BROKER, name="1")
    entry = (await describe(wire, BROKER, "1"))[name]
    assert (entry.value, entry.config_source) == ("20", 3)
    await replace(wire, {}, kind=BROKER, name="")
    entry = (await describe(wire, BROKER, "1"))[name]
    assert (entry.value, entry.config_source) == ("1048588", 5)


async def test_topics_inherit_dynamic_broker_settings(wire: Wire, broker: Broker) -> None:
    await create_topic(wire, "plain")
    await create_topic(wire, "special", configs={"max.message.bytes": "7000"})
    for name in ("plain", "special"):
        assert (await produce(wire, Topic(name), batch())).error_code == 0
    await change(wire, ("message.max.bytes", SET, "5"), kind=BROKER, name="1")
    codes = [(await produce(wire, Topic(n), batch())).error_code for n in ("plain", "special")]
    assert codes == [ErrorCode.MESSAGE_TOO_LARGE, 0]
    entry = (await describe(wire, TOPIC, "plain"))["max.message.bytes"]
    assert (entry.value, entry.config_source) == ("5", 2)


async def test_broker_settings_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await change(wire, ("log.retention.ms", SET, "11"), kind=BROKER, name="1")
        await change(wire, ("log.segment.bytes", SET, "2000000"), kind=BROKER, name="")
    async with started(tmp_path, log_segment_bytes=3_000_000) as broker:
        config = broker.node.config
        assert (config["log.retention.ms"], config["log.segment.bytes"]) == (11, 2_000_000)


@pytest.mark.parametrize(
    ("name", "setting", "value", "expected"),
    [
        ("1", "num.partitions", "3", r"dynamically: \[num.partitions\]"),
        ("", "num.partitions", "3", r"dynamically: \[num.partitions\]"),
        ("1", "listeners", "PLAINTEXT://:1", r"dynamically: \[listeners\]"),
        ("1", "log.retention.m", "3", "did you mean log.retention.ms"),
        ("1", "log.retention.ms", "x", "Invalid value x"),
        ("1", "log.retention.ms", "0", "must be -1"),
        ("1", "ssl.keystore.location", "/x", "listener prefix"),
        ("", "sasl.jaas.config", "x", "broker id must be specified"),
    ],
)
async def test_invalid_broker_settings_are_rejected(
    wire: Wire, name: str, setting: str, value: str, expected: str
) -> None:
    row = await change(wire, (setting, SET, value), kind=BROKER, name=name)
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert re.search(expected, row.error_message)
    assert await dynamic_settings(wire, BROKER, name) == {}


@pytest.mark.parametrize(
    "value", ["a:" + "9" * 5000, "a:1," * 5000 + "a", "a:1" + ", " * 9000, "a" + ":1" * 9000 + "x"]
)
async def test_malformed_connection_limits_are_rejected_quickly(wire: Wire, value: str) -> None:
    step = ("max.connections.per.ip.overrides", SET, value)
    assert (await change(wire, step, kind=BROKER, name="1")).error_code == 42


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize(
    "setting",
    [
        "max.connections",
        "max.connections.per.ip",
        "max.connection.creation.rate",
    ],
)
async def test_connection_limit_of_zero_is_rejected(wire: Wire, name: str, setting: str) -> None:
    """No client could connect any more to change the limit."""
    for zero in ("0", " -0", "+00"):
        row = await change(wire, (setting, SET, zero), kind=BROKER, name=name)
        assert row.error_code == ErrorCode.INVALID_REQUEST
        assert "no client could connect" in row.error_message
    assert (await change(wire, (setting, SET, "900"), kind=BROKER, name=name)).error_code == 0


async def test_connection_creation_rate_of_zero_is_rejected_for_single_listener(
    wire: Wire,
) -> None:
    step = ("listener.name.plaintext.max.connection.creation.rate", SET, "0")
    assert (await change(wire, step, kind=BROKER, name="1")).error_code == 42


async def test_limit_per_address_of_zero_needs_exceptions(wire: Wire) -> None:
    steps: list[Changes] = [
        ("max.connections.per.ip", SET, "0"),
        ("max.connections.per.ip.overrides", SET, "127.0.0.1:50"),
    ]
    assert (await change(wire, *steps, kind=BROKER, name="1")).error_code == 0


async def test_broker_list_setting_supports_append(wire: Wire) -> None:
    await change(wire, ("log.cleanup.policy", APPEND, "compact"), kind=BROKER, name="")
    assert await dynamic_settings(wire, BROKER, "") == {"log.cleanup.policy": "delete,compact"}
    row = await change(wire, ("message.max.bytes", APPEND, "1"), kind=BROKER, name="")
    assert row.error_code == ErrorCode.INVALID_CONFIG


async def test_settings_only_kafka_uses_are_stored_and_listed(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Values of unknown type are hidden. A warning names settings that will have an effect."""
    names = ("listener.name.a.ssl.provider", "remote.log.reader.threads")
    changes: list[Changes] = [(name, SET, "9") for name in names]
    assert (await change(wire, *changes, kind=BROKER, name="1")).error_code == 0
    rows = await describe(wire, BROKER, "1")
    for name, value in zip(names, (None, "9"), strict=True):
        row = rows[name]
        assert (row.value, row.is_sensitive, row.config_source) == (value, value is None, 2)
    assert f"{names[0]} has no effect yet" in caplog.text


async def test_sensitive_setting_is_stored_and_hidden(wire: Wire, broker: Broker) -> None:
    await change(wire, ("sasl.jaas.config", SET, "s3cret"), kind=BROKER, name="1")
    row = (await describe(wire, BROKER, "1"))["sasl.jaas.config"]
    assert (row.value, row.is_sensitive, row.synonyms[0].value) == (None, True, None)
    assert broker.node.config.sasl_jaas_config == "s3cret"


async def test_invalid_stored_broker_settings_are_ignored_on_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as broker:
        resource = ConfigResource(ResourceType.BROKER, "1")
        values = {"gone.since": "1", "log.retention.ms": "-1", "message.max.bytes": "x"}
        await broker.node.cluster.alter_configs(resource, values, cause="test")
    caplog.clear()
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await dynamic_settings(wire, BROKER, "1") == {"log.retention.ms": "-1"}
    assert caplog.text.count("ignoring an invalid dynamic broker setting") == 2


async def test_invalid_stored_topic_settings_are_ignored_on_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        values = {"gone.since": "1", "retention.ms": "-1", "max.message.bytes": "x"}
        cluster = broker.node.cluster
        await cluster.alter_topic_configs(cluster.topics["t"], values, cause="test")
    caplog.clear()
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await dynamic_settings(wire, TOPIC, "t") == {"retention.ms": "-1"}
        assert (await produce(wire, Topic("t"), batch())).error_code == 0
        await change(wire, ("segment.ms", SET, "1000"))
        assert await dynamic_settings(wire, TOPIC, "t") == {
            "retention.ms": "-1",
            "segment.ms": "1000",
        }
    assert caplog.text.count("topic t: ignoring an invalid stored setting") == 2


# -- log levels


@pytest.fixture
def restored_levels() -> Iterator[None]:
    """Restore the log levels after the test."""
    before = own_levels()
    yield
    set_levels(before)


@pytest.mark.usefixtures("restored_levels")
async def test_deleted_log_level_is_inherited_from_parent_logger(wire: Wire) -> None:
    rows = await describe(wire, LOGGER, "1")
    assert {"root", "kbroker.node.node", "kbroker.storage.recovery"} <= rows.keys()
    assert all(row.config_source == 6 and row.config_type == 0 for row in rows.values())
    steps = [
        (("kbroker.node.node", SET, "DEBUG"), "DEBUG", logging.DEBUG),
        (("root", SET, "FATAL"), "DEBUG", logging.DEBUG),
        (("kbroker.node.node", DELETE, None), "FATAL", logging.CRITICAL),
    ]
    for step, shown, level in steps:
        assert (await change(wire, step, kind=LOGGER, name="1")).error_code == 0
        assert (await describe(wire, LOGGER, "1"))["kbroker.node.node"].value == shown
        assert logging.getLogger("kbroker.node.node").getEffectiveLevel() == level


@pytest.mark.usefixtures("restored_levels")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (("kbroker.node.node", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("kbroker.node.node", SET, "debug"), ErrorCode.INVALID_CONFIG),
        (("no.such", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("no.such", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("kbroker.node.node", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (("kbroker.node.node", SET, None), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_invalid_log_levels_are_rejected(wire: Wire, step: Changes, code: ErrorCode) -> None:
    before = await describe(wire, LOGGER, "1")
    first: Changes = ("kbroker.cluster.topics", SET, "TRACE")
    assert (await change(wire, first, step, kind=LOGGER, name="1")).error_code == code
    assert await describe(wire, LOGGER, "1") == before


async def test_replacing_all_log_levels_is_rejected(wire: Wire) -> None:
    row = await replace(wire, {"kbroker.node.node": "INFO"}, kind=LOGGER, name="1")
    assert row.error_code == ErrorCode.INVALID_REQUEST


# -- groups and metrics subscriptions


async def test_group_settings_survive_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        step = ("consumer.session.timeout.ms", SET, "50000")
        assert (await change(wire, step, kind=GROUP, name="a/b c")).error_code == 0
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        rows = await describe(wire, GROUP, "a/b c")
        assert len(rows) == 21
        row = rows["consumer.session.timeout.ms"]
        assert (row.value, row.config_source) == ("50000", 8)
        assert [(each.name, each.value, each.source) for each in row.synonyms] == [
            ("consumer.session.timeout.ms", "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]
        other = rows["share.auto.offset.reset"]
        assert [(each.name, each.value, each.source) for each in other.synonyms] == [
            ("share.auto.offset.reset", "latest", 5)
        ]
        assert await dynamic_settings(wire, GROUP, "a/b c") == {
            "consumer.session.timeout.ms": "50000"
        }
        assert await dynamic_settings(wire, GROUP, "other") == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("no.such", "1"),
        ("consumer.session.timeout.ms", "x"),
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("streams.num.standby.replicas", "3"),
        ("share.record.lock.duration.ms", "5"),
        ("share.auto.offset.reset", "by_duration:x"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.isolation.level", "x"),
        ("streams.assignor.name", "x"),
        ("streams.rack.aware.assignment.tags", "zone,rack,zone"),
        ("errors.deadletterqueue.topic.name", "__dlq"),
        ("errors.deadletterqueue.copy.record.enable", "x"),
    ],
)
async def test_invalid_group_settings_are_rejected(wire: Wire, setting: str, value: str) -> None:
    row = await change(wire, (setting, SET, value), kind=GROUP, name="g")
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert setting in row.error_message


async def test_group_settings_of_streams_fall_back_to_the_broker() -> None:
    async with (
        started(group_streams_rack_aware_assignment_tags="zone,rack") as broker,
        connected(broker.endpoint) as wire,
    ):
        rows = await describe(wire, GROUP, "g")
        assignor = rows["streams.assignor.name"]
        assert (assignor.value, assignor.config_source) == ("sticky", 5)
        assert [(each.name, each.value, each.source) for each in assignor.synonyms] == [
            ("group.streams.assignors", "sticky", 5)
        ]
        tags = rows["streams.rack.aware.assignment.tags"]
        assert (tags.value, tags.config_source) == ("zone,rack", 4)
        step = ("streams.rack.aware.assignment.tags", SET, "cluster")
        assert (await change(wire, step, kind=GROUP, name="g")).error_code == 0
        rows = await describe(wire, GROUP, "g")
        assert rows["streams.rack.aware.assignment.tags"].value == "cluster"


async def test_heartbeat_interval_above_session_timeout_is_rejected() -> None:
    async with (
        started(group_consumer_max_heartbeat_interval_ms=50_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        step = ("consumer.heartbeat.interval.ms", SET, "45000")
        row = await change(wire, step, kind=GROUP, name="g")
        assert row.error_code == ErrorCode.INVALID_CONFIG
        assert "greater than consumer.heartbeat.interval.ms" in row.error_message


async def test_metrics_subscription_settings_are_stored_and_described(wire: Wire) -> None:
    match = "client_id=a.*,client_software_name=b"
    await replace(wire, {"match": match}, kind=METRICS, name="m")
    await change(wire, ("metrics", SET, "org.apache"), kind=METRICS, name="m")
    rows = await describe(wire, METRICS, "m")
    assert {name: (row.value, row.config_source) for name, row in rows.items()} == {
        "interval.ms": ("300000", 5),
        "match": (match, 7),
        "metrics": ("org.apache", 7),
    }


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "x", ErrorCode.INVALID_CONFIG),
        ("match", "foo=a", ErrorCode.INVALID_CONFIG),
        ("match", "client_id", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=" + "(" * 5000, ErrorCode.INVALID_CONFIG),
        ("no.such", "1", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_invalid_metrics_subscription_settings_are_rejected(
    wire: Wire, setting: str, value: str, code: ErrorCode
) -> None:
    row = await change(wire, (setting, SET, value), kind=METRICS, name="m")
    assert row.error_code == code
    assert await dynamic_settings(wire, METRICS, "m") == {}


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize(
    ("kind", "setting"),
    [(METRICS, "metrics"), (METRICS, "match"), (GROUP, "streams.rack.aware.assignment.tags")],
)
async def test_lists_of_client_named_resources_can_only_be_set(
    wire: Wire, kind: int, setting: str, operation: int
) -> None:
    row = await change(wire, (setting, operation, "client_id=a"), kind=kind, name="m")
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert await list_resources(wire, kind) == []


# -- ListConfigResources


async def list_resources(wire: Wire, *types: int, version: int = 1) -> list[tuple[int, str]]:
    ask = request(ApiKey.LIST_CONFIG_RESOURCES, resource_types=list(types))
    response = await wire.ask(ApiKey.LIST_CONFIG_RESOURCES, version, ask)
    assert response.error_code == 0
    return [(row.resource_type, row.resource_name) for row in response.config_resources]


async def test_resources_with_settings_are_listed(wire: Wire) -> None:
    await create_topic(wire, "t")
    await change(wire, ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP, name="g")
    await change(wire, ("interval.ms", SET, "1000"), kind=METRICS, name="m")
    resources = [(GROUP, "g"), (METRICS, "m"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")]
    assert await list_resources(wire) == resources
    assert await list_resources(wire, version=0) == [(METRICS, "m")]
    for kind, name in resources:
        assert await list_resources(wire, kind) == [(kind, name)]
    assert await list_resources(wire, TOPIC, GROUP, TOPIC) == [(GROUP, "g"), (TOPIC, "t")]
    await replace(wire, {}, kind=GROUP, name="g")
    assert await list_resources(wire, GROUP) == []


@pytest.mark.parametrize("types", [[99], [TOPIC, 0], [-1]])
async def test_listing_unknown_resource_types_is_rejected(wire: Wire, types: list[int]) -> None:
    ask = request(ApiKey.LIST_CONFIG_RESOURCES, resource_types=types)
    response = await wire.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ask)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


# -- resources with names that clients choose


@pytest.mark.parametrize(
    ("kind", "resource", "setting"),
    [
        (GROUP, GroupResource, ("consumer.session.timeout.ms", SET, "50000")),
        (METRICS, ClientMetricsResource, ("interval.ms", SET, "60000")),
    ],
    ids=["group", "metrics"],
)
async def test_number_of_client_named_resources_is_bounded(
    monkeypatch: pytest.MonkeyPatch, kind: int, resource: type[NamedResource], setting: Changes
) -> None:
    monkeypatch.setattr(resource, "count_max", 2)
    async with started() as broker, connected(broker.endpoint) as wire:
        names = ["a", "b", "c"]
        codes = [(await change(wire, setting, kind=kind, name=each)).error_code for each in names]
        assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]
        only_checked = await change(wire, setting, kind=kind, name="c", validate_only=True)
        assert only_checked.error_code == ErrorCode.POLICY_VIOLATION
        assert (await change(wire, setting, kind=kind, name="b")).error_code == 0
        await change(wire, (setting[0], DELETE, None), kind=kind, name="c")
        assert await dynamic_settings(wire, kind, "c") == {}
        await replace(wire, {}, kind=kind, name="a")
        assert (await change(wire, setting, kind=kind, name="c")).error_code == 0
        assert await list_resources(wire, kind) == [(kind, "b"), (kind, "c")]


async def test_size_of_client_named_resources_is_bounded(wire: Wire) -> None:
    setting = ("consumer.session.timeout.ms", SET, "50000")
    row = await change(wire, setting, kind=GROUP, name="g" * NAMED_BYTES_MAX)
    assert row.error_code == ErrorCode.POLICY_VIOLATION
    assert "8192" in row.error_message
    row = await change(wire, setting, kind=GROUP, name="g" * 8000)
    assert row.error_code == 0
    metrics = ",".join(f"org.apache.kafka.{number}" for number in range(1000))
    row = await change(wire, ("metrics", SET, metrics), kind=METRICS, name="m")
    assert row.error_code == ErrorCode.POLICY_VIOLATION
