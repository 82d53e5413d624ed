"""Settings of a broker and of a topic, validated together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config import (
    BrokerConfig,
    ConfigError,
    ConfigLayer,
    Source,
    TopicConfig,
    describe_broker,
    parse_properties,
    validate_topic_config,
    validate_topic_configs,
)

from .entries import entry


@pytest.mark.parametrize("name", ["message.format.version", "no.such", "log.retention.ms"])
def test_unknown_topic_setting_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^Unknown topic config name: {name}"):
        validate_topic_config(name, "1")


def test_unknown_setting_suggests_similar_name() -> None:
    with pytest.raises(ConfigError, match=r"retention\.m; did you mean retention\.ms\?$"):
        validate_topic_config("retention.m", "1")


def test_null_value_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"Null value .* retention\.ms"):
        validate_topic_config("retention.ms", None)


def test_contradictory_topic_settings_are_rejected() -> None:
    broker = BrokerConfig()
    good = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}
    validate_topic_configs(good, broker)
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms \(6\) is greater"):
        validate_topic_configs(good | {"min.compaction.lag.ms": "6"}, broker)
    with pytest.raises(ConfigError, match="Null value"):
        validate_topic_configs({"retention.ms": None}, broker)


def test_source_with_highest_priority_sets_value_and_origin(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnode.id=7\nlog.retention.bytes=9\n")
    environ = {"KBROKER_CFG_NUM_PARTITIONS": "3", "KBROKER_CFG_NODE_ID": "8"}
    config = BrokerConfig.load(options=["num.partitions=4"], environ=environ, file=file)
    assert (config.num_partitions, config.node_id, config["log.retention.bytes"]) == (4, 8, 9)
    assert config["broker.id"] == 8
    origins = [config.origin(name) for name in ("num.partitions", "node.id", "log.retention.bytes")]
    assert origins == ["option", "environment", str(file)]
    assert config.origin("message.max.bytes") is None
    assert config.max_connections == 10_000


def test_error_lists_every_invalid_value_with_origin() -> None:
    environ = {"KBROKER_CFG_NUM_PARTITIONS": "none"}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(options=["node.id=-5"], environ=environ)
    first, second = str(caught.value).splitlines()
    assert first.endswith("num.partitions: expected an integer of at least 1 (environment)")
    assert second.endswith("node.id: expected an integer of at least 0 (option)")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["log.retention.hours=0"], "log.retention.hours"),
        (["node.id=1", "broker.id=2"], "differ"),
        (["group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"], "greater"),
        (["queued.max.request.bytes=5"], "less than"),
        (["listeners="], "no listener"),
        (["listeners=C://:1", "controller.listener.names=C"], "no listener"),
        (["log.dir=a,b"], "log.dir: expected a single item"),
        (["max.connections.per.ip.overrides=10.0.0.1"], "address:number"),
    ],
)
def test_contradictory_broker_settings_are_rejected(options: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        BrokerConfig.load(options=options)


def test_unknown_and_unimplemented_settings_warn_or_fail() -> None:
    options = [
        "num.partition=3",
        "replica.alter.log.dirs.io.max.bytes.per.second=1",
        "sasl.login.class=y",
        "num.io.threads=2",
    ]
    config = BrokerConfig.load(options=[*options, "zookeeper.connect=z:2181"])
    assert [notice.level for notice in config.notices] == ["warning"] * 3 + ["info"]
    texts = [notice.text for notice in config.notices]
    assert texts[0].endswith("num.partition; did you mean num.partitions? (option)")
    assert texts[1:3] == [
        "replica.alter.log.dirs.io.max.bytes.per.second has no effect yet (option)",
        "sasl.login.class has no effect yet (option)",
    ]
    assert texts[3] == "Settings without effect: num.io.threads, zookeeper.connect"
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        BrokerConfig.load(options=options, strict=True)
    assert not BrokerConfig.load(options=["num.partitions=3"], strict=True).notices


def test_kafkas_default_properties_cause_no_warnings() -> None:
    text = """
    process.roles=broker,controller
    node.id=1
    controller.quorum.bootstrap.servers=localhost:9093
    listeners=PLAINTEXT://:9092,CONTROLLER://:9093
    inter.broker.listener.name=PLAINTEXT
    advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
    controller.listener.names=CONTROLLER
    listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
    num.network.threads=3
    num.io.threads=8
    socket.send.buffer.bytes=102400
    socket.receive.buffer.bytes=102400
    socket.request.max.bytes=104857600
    log.dirs=/tmp/logs
    num.partitions=1
    num.recovery.threads.per.data.dir=2
    offsets.topic.replication.factor=1
    share.coordinator.state.topic.replication.factor=1
    transaction.state.log.replication.factor=1
    transaction.state.log.min.isr=1
    log.retention.hours=168
    log.segment.bytes=1073741824
    log.retention.check.interval.ms=300000
    """
    config = BrokerConfig([ConfigLayer("file", parse_properties(text))], strict=True)
    assert [notice.level for notice in config.notices] == ["info"]
    assert config.listeners == ("PLAINTEXT://:9092",)
    assert config.advertised_listeners == ("PLAINTEXT://localhost:9092",)
    assert config.log_dirs == ("/tmp/logs",)


def test_internal_topic_defaults_depend_on_node_count() -> None:
    names = ("offsets.topic.replication.factor", "transaction.state.log.min.isr")
    shown = [[BrokerConfig(nodes=nodes)[name] for name in names] for nodes in (1, 2, 3, 5)]
    assert shown == [[1, 1], [2, 1], [3, 2], [3, 2]]


def test_dynamic_settings_override_static_settings() -> None:
    static = BrokerConfig.load(options=["message.max.bytes=10", "num.partitions=2"])
    everywhere = {"message.max.bytes": "20", "log.retention.ms": "5"}
    cluster = static.overlay(everywhere, origin="cluster", source=Source.DYNAMIC_DEFAULT_BROKER)
    node = cluster.overlay({"message.max.bytes": "30"}, origin="n", source=Source.DYNAMIC_BROKER)
    changed = node.overlay({"num.partitions": "9"}, origin="flag")
    assert [each["message.max.bytes"] for each in (static, cluster, node)] == [10, 20, 30]
    assert (changed.num_partitions, changed["message.max.bytes"]) == (9, 30)
    overridden = node.overlay({}, origin="node", source=Source.DYNAMIC_BROKER)
    assert (overridden["message.max.bytes"], overridden["log.retention.ms"]) == (20, 5)
    synonyms = entry(describe_broker(node), "message.max.bytes").synonyms
    assert [(each.value, each.source) for each in synonyms] == [
        ("30", Source.DYNAMIC_BROKER),
        ("20", Source.DYNAMIC_DEFAULT_BROKER),
        ("10", Source.STATIC_BROKER),
        ("1048588", Source.DEFAULT),
    ]
    with pytest.raises(
        ConfigError, match=r"Cannot update these configs dynamically: \[num\.partitions\]"
    ):
        static.overlay({"num.partitions": "1"}, origin="n", source=Source.DYNAMIC_BROKER)


@pytest.mark.parametrize(
    ("options", "retention_ms"),
    [
        ([], 168 * 3_600_000),
        (["log.retention.hours=2"], 2 * 3_600_000),
        (["log.retention.hours=2", "log.retention.minutes=3"], 180_000),
        (["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"], 4),
        (["log.retention.minutes=-1"], -1),
    ],
)
def test_most_precise_retention_setting_applies(options: list[str], retention_ms: int) -> None:
    broker = BrokerConfig.load(options=options)
    assert TopicConfig({}, broker).retention_ms == retention_ms
    assert TopicConfig({"retention.ms": "77"}, broker).retention_ms == 77


def test_roll_jitter_and_flush_synonyms_set_topic_values() -> None:
    options = ["log.roll.hours=2", "log.roll.jitter.hours=1", "log.flush.scheduler.interval.ms=9"]
    config = TopicConfig({}, BrokerConfig.load(options=options))
    assert (config.segment_ms, config.segment_jitter_ms) == (7_200_000, 3_600_000)
    assert config["flush.ms"] == 9


def test_topic_setting_defaults_to_broker_setting() -> None:
    broker = BrokerConfig.load(options=["log.cleanup.policy=compact", "log.segment.bytes=2000000"])
    plain = TopicConfig({}, broker)
    own = TopicConfig({"cleanup.policy": "delete", "internal.segment.bytes": "512"}, broker)
    assert (plain.compacted, plain.segment_bytes) == (True, 2_000_000)
    assert (own.compacted, own.segment_bytes) == (False, 512)
    with pytest.raises(ConfigError, match=r"no\.such"):
        TopicConfig({"no.such": "1"}, broker)
    with pytest.raises(KeyError):
        plain.effective("no.such")
