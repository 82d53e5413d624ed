"""Tests of DescribeConfigs; tests/config tests the contents of the entries."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.cluster import EVERY_NODE, ConfigResource, ResourceType
from kbroker.config import BrokerConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest

from ..brokers import LOOPBACK, started
from ..wire import Wire, connected, create_topic

VERSIONS = range(5)
TOPIC, BROKER = 2, 4
Resource = DescribeConfigsRequest.Resource


async def describe(
    wire: Wire, version: int, kind: int, name: str, keys: list[str] | None = None, **fields: Any
) -> Any:
    resource = Resource(resource_type=kind, resource_name=name, configuration_keys=keys)
    ask = DescribeConfigsRequest(resources=[resource], **fields)
    (row,) = (await wire.ask(ApiKey.DESCRIBE_CONFIGS, version, ask)).results
    assert (row.resource_type, row.resource_name) == (kind, name)
    return row


@pytest.mark.parametrize("version", VERSIONS)
async def test_describe_topic_returns_complete_entries(version: int) -> None:
    """Source 1 is topic, 4 static, 5 default; version 0 has a flag instead of the source."""
    async with (
        started(log_segment_bytes=2_000_000) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t", configs={"retention.ms": "1000"})
        row = await describe(wire, version, TOPIC, "t", include_synonyms=True)
        assert row.error_code == 0
        entries = {entry.name: entry for entry in row.configs}
        assert len(entries) == len(row.configs) > 25
        expected = {
            "retention.ms": ("1000", 1, False),
            "segment.bytes": ("2000000", 4, False),
            "cleanup.policy": ("delete", 5, True),
        }
        for name, (value, source, is_default) in expected.items():
            entry = entries[name]
            assert (entry.value, entry.read_only, entry.is_sensitive) == (value, False, False)
            if version == 0:
                assert entry.is_default == is_default
            else:
                assert entry.config_source == source
                assert entry.synonyms
                assert entry.synonyms[0].value == value


@pytest.mark.parametrize("version", VERSIONS)
async def test_describe_broker_returns_complete_entries(wire: Wire, version: int) -> None:
    row = await describe(wire, version, BROKER, "1")
    entries = {entry.name: entry for entry in row.configs}
    assert row.error_code == 0
    assert len(entries) == len(row.configs) > 100
    assert entries["node.id"].read_only
    assert entries["num.partitions"].value == "1"
    for entry in row.configs:
        assert entry.value is None or not entry.is_sensitive, "sensitive values are hidden"


@pytest.mark.parametrize("version", VERSIONS)
async def test_describe_returns_only_requested_keys(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    row = await describe(wire, version, TOPIC, "t", ["retention.ms", "no.such.key"])
    assert [entry.name for entry in row.configs] == ["retention.ms"]
    row = await describe(wire, version, TOPIC, "t", ["no.such.key"])
    assert (row.error_code, row.configs) == (0, [])


@pytest.mark.parametrize("version", [3, 4])
async def test_documentation_is_returned_only_on_request(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    for requested in (False, True):
        row = await describe(wire, version, TOPIC, "t", include_documentation=requested)
        assert all(bool(entry.documentation) == requested for entry in row.configs)
        assert all(entry.config_type > 0 for entry in row.configs)


@pytest.mark.parametrize("version", range(1, 5))
async def test_synonyms_are_returned_only_on_request(wire: Wire, version: int) -> None:
    """Synonyms of the broker have the broker's property name."""
    await create_topic(wire, "t", configs={"segment.bytes": "2000000"})
    row = await describe(wire, version, TOPIC, "t", ["segment.bytes"])
    assert row.configs[0].synonyms == []
    row = await describe(wire, version, TOPIC, "t", ["segment.bytes"], include_synonyms=True)
    shown = [(s.name, s.value, s.source) for s in row.configs[0].synonyms]
    assert shown == [("segment.bytes", "2000000", 1), ("log.segment.bytes", "1073741824", 5)]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (0, "t", ErrorCode.INVALID_REQUEST),
        (99, "t", ErrorCode.INVALID_REQUEST),
        (-1, "t", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_rejects_unknown_resources(
    wire: Wire, version: int, kind: int, name: str, code: int
) -> None:
    row = await describe(wire, version, kind, name)
    assert (row.error_code, row.configs) == (code, [])


async def test_describe_returns_each_resource_once(wire: Wire) -> None:
    await create_topic(wire, "t")
    requested = [
        Resource(resource_type=kind, resource_name=name)
        for kind, name in ((TOPIC, "t"), (TOPIC, "missing"), (BROKER, "1"), (TOPIC, "t"))
    ]
    ask = DescribeConfigsRequest(resources=requested)
    rows = (await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)).results
    assert [(row.resource_name, row.error_code) for row in rows] == [
        ("t", 0),
        ("missing", 3),
        ("1", 0),
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_resource_type_fails_whole_request(wire: Wire, version: int) -> None:
    await create_topic(wire, "t")
    rows = [
        Resource(resource_type=kind, resource_name="t", configuration_keys=None)
        for kind in (TOPIC, 77)
    ]
    ask = DescribeConfigsRequest(resources=rows)
    response = await wire.ask(ApiKey.DESCRIBE_CONFIGS, version, ask)
    found = [(row.resource_type, row.error_code, row.configs) for row in response.results]
    assert found == [(TOPIC, 42, []), (77, 42, [])]
    assert all(row.error_message for row in response.results)


OWN = "listener.name.plaintext."
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_a='hunter2';"
GIVEN = {
    "max.connections": "77",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.password": "hunter2",
    "plain.sasl.jaas.config": JAAS,
    "foo.bar": "hunter2",
}


@pytest.mark.parametrize("version", range(1, 5))
async def test_listener_settings_are_described_like_in_kafka(version: int) -> None:
    """Name, value, source, type and synonyms equal those of Apache Kafka 4.3."""
    options: dict[str, Any] = {OWN + name: value for name, value in GIVEN.items()} | {
        "foo.bar": "hunter2"
    }
    async with started(**options) as broker, connected(broker.endpoint) as wire:
        cluster = broker.node.cluster
        resource = ConfigResource(ResourceType.BROKER, "1")
        changed = {f"{OWN}max.connections": "78", f"{OWN}ssl.keystore.password": "hunter2"}
        await cluster.alter_configs(resource, changed, cause="test")
        row = await describe(
            wire, version, BROKER, "1", include_synonyms=True, include_documentation=True
        )
        found = {
            entry.name.removeprefix(OWN): (
                entry.value,
                entry.config_source,
                [(each.name.removeprefix(OWN), each.value, each.source) for each in entry.synonyms],
            )
            for entry in row.configs
            if entry.name.startswith(OWN)
        }
        default = ("max.connections", str(broker.node.config["max.connections"]), 5)
        assert found == {
            "max.connections": (
                "78",
                2,
                [("max.connections", "78", 2), ("max.connections", "77", 4), default],
            ),
            "ssl.keystore.type": (
                "PEM",
                4,
                [("ssl.keystore.type", "PEM", 4), ("ssl.keystore.type", "JKS", 5)],
            ),
            "ssl.keystore.password": (
                None,
                2,
                [("ssl.keystore.password", None, 2), ("ssl.keystore.password", None, 4)],
            ),
            "plain.sasl.jaas.config": (None, 4, [("plain.sasl.jaas.config", None, 4)]),
            "foo.bar": (None, 4, [("foo.bar", None, 4), ("foo.bar", None, 4)]),
        }
        entries = {each.name: each for each in row.configs}
        assert all(entries[OWN + name].read_only for name in GIVEN)
        if version >= 3:
            assert [entries[OWN + name].config_type for name in GIVEN] == [3, 2, 9, 9, 0]
        assert "hunter2" not in repr(row)


@pytest.mark.parametrize("version", range(1, 5))
async def test_settings_of_each_source_are_listed(version: int) -> None:
    """The sources equal those of Apache Kafka: 2 broker, 3 all brokers, 4 static, 5 default.

    Unknown settings have no value, because they may be secrets.
    """
    everywhere, dynamic = "log.cleaner.threads", "log.cleaner.io.buffer.size"
    static, own = "log.dir.failure.timeout.ms", "my.password"
    config = BrokerConfig.load(options={own: "hunter2", everywhere: "1", static: "9"})
    async with (
        open_broker(config, data_dir=None, listeners=[LOOPBACK]) as broker,
        connected(broker.endpoint) as wire,
    ):
        for name, values in (
            (EVERY_NODE, {everywhere: "2"}),
            ("1", {everywhere: "3", dynamic: "4"}),
        ):
            resource = ConfigResource(ResourceType.BROKER, name)
            await broker.node.cluster.alter_configs(resource, values, cause="test")
        row = await describe(wire, version, BROKER, "1", include_synonyms=True)
        names = {own, everywhere, dynamic, static}
        found = {each.name: each for each in row.configs if each.name in names}
        assert {
            name: [(s.source, s.value) for s in each.synonyms] for name, each in found.items()
        } == {
            everywhere: [(2, "3"), (3, "2"), (4, "1"), (5, "1")],
            dynamic: [(2, "4"), (5, "524288")],
            static: [(4, "9"), (5, "30000")],
            own: [(4, None)],
        }
        for each in found.values():
            assert (each.config_source, each.value) == (
                each.synonyms[0].source,
                each.synonyms[0].value,
            )
        assert [each.name for each in found.values() if each.is_sensitive] == [own]
        assert [each.name for each in found.values() if each.read_only] == [static, own]
        cluster = await describe(wire, version, BROKER, EVERY_NODE, include_synonyms=True)
        assert [each.name for each in cluster.configs] == [everywhere]


async def test_topic_shows_changed_broker_default_at_once(wire: Wire, broker: Broker) -> None:
    await create_topic(wire, "t")
    resource = ConfigResource(ResourceType.BROKER, EVERY_NODE)
    for value in ("1000", "2000"):
        await broker.node.cluster.alter_configs(resource, {"log.retention.ms": value}, cause="test")
        (row,) = (await describe(wire, 4, TOPIC, "t", ["retention.ms"])).configs
        assert row.value == value
        topic = CreateTopicsRequest.Topic(name=f"t{value}", num_partitions=1, replication_factor=1)
        response = await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        shown = {each.name: each.value for each in response.topics[0].configs}
        assert shown["retention.ms"] == value
