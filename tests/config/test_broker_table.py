"""The property table, the places that settings come from, and what DescribeConfigs shows of them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple, assert_type

import pytest

from kbroker.config import (
    BROKER_PROPERTIES,
    PROPERTIES,
    TOPIC_PROPERTIES,
    BrokerConfig,
    ClientMetricsConfig,
    ConfigEntry,
    ConfigError,
    Effect,
    GroupConfig,
    Layer,
    Property,
    Scope,
    Source,
    TopicConfig,
    Type,
    Value,
    describe_broker,
    describe_topic,
    parse_properties,
    parse_toml,
    read_environment,
    read_file,
    read_options,
    validate_topic_config,
    validate_topic_configs,
)
from kbroker.config.document import document
from kbroker.config.property import PASSWORD, Settings, properties_of
from kbroker.config.tables import effect_of

ROOT = Path(__file__).parents[2]


class KafkaSetting(NamedTuple):
    scope: str
    name: str
    type: str
    default: str
    change: str


def kafka_settings(scope: str) -> dict[str, KafkaSetting]:
    text = (ROOT / "tests/data/kafka-4.3-settings.tsv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = [KafkaSetting(*line.split("\t")) for line in lines]
    return {row.name: row for row in rows if row.scope == scope}


def own_and_kafka(scope: str) -> Iterator[tuple[Property[Value], KafkaSetting]]:
    theirs = kafka_settings(scope)
    return (
        (each, theirs[each.name])
        for each in PROPERTIES[Scope[scope.upper()]].values()
        if each.name in theirs
    )


def topic(**overrides: str) -> TopicConfig:
    return TopicConfig({k.replace("_", "."): v for k, v in overrides.items()}, BrokerConfig())


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(each for each in entries if each.name == name)


# The table


@pytest.mark.parametrize(
    ("scope", "number"), [("topic", 33), ("broker", 150), ("group", 17), ("client_metrics", 3)]
)
def test_types_defaults_and_dynamics_are_kafkas_unless_marked(scope: str, number: int) -> None:
    compared = 0
    for ours, kafka in own_and_kafka(scope):
        default = ours.default if ours.kafka_default is None else ours.kafka_default
        shown = {None: "-", "none: must be set": "!"}.get(default, default)
        dynamic = ours.dynamic or ours.kafka_dynamic
        ours_row = (ours.type.name, shown, "dynamic" if dynamic else "read-only")
        assert ours_row == (kafka.type, kafka.default, kafka.change), ours.name
        assert ours.kafka_default is None or ours.default != ours.kafka_default, ours.name
        compared += 1
    assert compared >= number


@pytest.mark.parametrize("scope", [Scope.TOPIC, Scope.GROUP, Scope.CLIENT_METRICS])
def test_every_setting_of_kafka_exists(scope: Scope) -> None:
    shown = {name for name, each in PROPERTIES[scope].items() if not each.internal}
    assert shown == kafka_settings(scope.name.lower()).keys()


def test_own_settings_are_those_that_kafka_lacks() -> None:
    kafka = kafka_settings("broker")
    own = {each.name for each in BROKER_PROPERTIES.values() if each.own}
    # Names of Kafka's that are no broker settings: of its authorizer, and quotas that tools set.
    others = {
        "super.users",
        "allow.everyone.if.no.acl.found",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "max.decompressed.message.bytes",  # of Kafka 4.4
    }
    assert own == BROKER_PROPERTIES.keys() - kafka.keys() - others


def test_no_broker_setting_of_kafka_is_unknown() -> None:
    assert [name for name in kafka_settings("broker") if effect_of(name) is None] == []


@pytest.mark.parametrize("scope", list(Scope))
def test_every_setting_says_what_it_does_and_has_a_valid_default(scope: Scope) -> None:
    for name, each in PROPERTIES[scope].items():
        assert each.name == name
        assert each.doc.endswith("."), name
        assert all(synonym in BROKER_PROPERTIES for synonym in each.synonyms), name
        if each.default is not None:
            assert each.format(each.parse(each.default)) == each.default, name


def test_topic_defaults_agree_with_the_broker_settings_behind_them() -> None:
    broker = BrokerConfig()
    for each in TOPIC_PROPERTIES.values():
        if each.synonyms:
            assert each.format(broker.first_set(each.synonyms)) == each.default, each.name


def test_each_setting_is_declared_once_and_read_by_its_attribute() -> None:
    """An attribute that hides another one, or a name that stands twice, would be lost silently."""
    broker = BrokerConfig()
    configs = (
        broker,
        TopicConfig({}, broker),
        GroupConfig({}, broker),
        ClientMetricsConfig({}, broker),
    )
    for config in configs:
        declared = [*properties_of(type(config))]
        assert len({each.name for each in declared}) == len(declared) > 2
        read = settings_of(type(config))
        limited = {each.name for each in declared} - {each.name for each in read.values()}
        assert all(each.endswith((".ms", ".limit", ".locks")) for each in limited)
        for attribute, each in read.items():
            value = config[each.name]
            if value is None and each.kind.unset is None:
                with pytest.raises(TypeError, match=f"{each.name} is not set"):
                    getattr(config, attribute)
            else:
                expected = each.kind.unset if value is None else value
                assert getattr(config, attribute) == expected, attribute


def settings_of(owner: type[Settings]) -> dict[str, Property[Value]]:
    """The settings that attributes of a class read, without those that its own properties hide."""
    found = {name: getattr(owner, name) for name in dir(owner)}
    return {name: each for name, each in found.items() if isinstance(each, Property)}


def test_types_of_attributes_are_known() -> None:
    """Also to mypy, which checks this file."""
    config = BrokerConfig()
    assert_type(config.node_id, int)
    assert_type(config.flush_policy, str)
    assert_type(config.allow_delete_topics, bool)
    assert_type(config.log_cleaner_min_cleanable_ratio, float)
    assert_type(config.group_consumer_assignors, tuple[str, ...])
    assert_type(BrokerConfig.node_id, Property[int])
    assert BrokerConfig.node_id.name == "node.id"


# What the settings do

DERIVED = {
    "replica.selector.class": "reads_by_rack",
    "advertised.listeners": "advertised_listeners",
    "broker.rack": "rack",
    "controller.listener.names": "listeners",
    "internal.segment.bytes": "segment_bytes",
    "listeners": "listeners",
    "log.dir": "log_dirs",
    "max.connections.per.ip": "connections_max_from",
    "max.connections.per.ip.overrides": "connections_max_from",
    "log.dirs": "log_dirs",
    "segment.bytes": "segment_bytes",
}
"""Attributes that read settings other than by their declaration."""


def attributes() -> dict[str, str]:
    """The attribute by which the program reads a setting."""
    members = settings_of(TopicConfig) | settings_of(BrokerConfig)
    return {each.name: name for name, each in members.items()} | DERIVED


def words_of_the_program() -> tuple[set[str], set[str], set[str]]:
    """All attribute names and all string constants outside of the table itself, and what the names of
    settings that are put together look like."""
    sources = [p for p in (ROOT / "kbroker").rglob("*.py") if "config" not in p.parts]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    composed = {pattern_of(node) for node in nodes if isinstance(node, ast.JoinedStr)}
    return names, texts, {each for each in composed if each.startswith(r"group\.")}


def pattern_of(text: ast.JoinedStr) -> str:
    """A regular expression for what an f-string may give."""
    parts = [
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[\w.]+"
        for part in text.values
    ]
    return "".join(parts)


KINDS_OF_GROUPS = ("group.consumer.", "group.share.", "group.streams.")
"""Their settings are read by names that are put together; that each has its effect is seen in
test_config_effects.py."""


@pytest.mark.slow
def test_what_the_table_calls_applied_is_read_by_the_program() -> None:
    names, texts, composed = words_of_the_program()
    attribute = attributes()
    read = {
        name
        for name in (*TOPIC_PROPERTIES, *BROKER_PROPERTIES)
        if attribute.get(name) in names
        or name in texts
        or (name.startswith(KINDS_OF_GROUPS) and any(re.fullmatch(p, name) for p in composed))
    }
    read |= {
        synonym
        for name in read & TOPIC_PROPERTIES.keys()
        for synonym in TOPIC_PROPERTIES[name].synonyms
    }
    if "node.id" in read:
        read.add("broker.id")
    every = (*TOPIC_PROPERTIES.values(), *BROKER_PROPERTIES.values())
    applied = {each.name for each in every if each.effect is Effect.APPLIED}
    others = {each.name for each in every} - applied
    assert sorted(applied - read) == [], "read them, or mark them LATER in the table"
    assert sorted(n for n in others if attribute.get(n) in names) == [], "mark them APPLIED"


# Reading one value


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("cleanup.policy", "", ""),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "delete,delete", "delete"),
        ("retention.ms", " 5 ", "5"),
        ("retention.ms", "+5", "5"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "9223372036854775807", "9223372036854775807"),
        ("retention.bytes", "-5", "-5"),
        ("segment.bytes", "1048576", "1048576"),
        ("internal.segment.bytes", "100", "100"),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "1e-5", "1.0E-5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", "0.000123", "1.23E-4"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "0:1,0:1", "0:1,0:1"),
        ("leader.replication.throttled.replicas", "", ""),
        ("remote.storage.enable", "False", "false"),
    ],
)
def test_takes_what_kafka_takes(name: str, text: str, shown: str) -> None:
    validate_topic_config(name, text)
    found = (
        entry(describe_topic({name: text}, BrokerConfig()), name)
        if "internal" not in name
        else None
    )
    each = TOPIC_PROPERTIES[name]
    assert each.format(each.parse(text)) == shown
    assert found is None or (found.value, found.source) == (shown, Source.TOPIC)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "Delete"),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "none"),
        ("retention.ms", "1_000"),
        ("retention.ms", "5.0"),
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", "9223372036854775808"),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("segment.ms", "0"),
        ("preallocate", "yes"),
        ("preallocate", ""),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("compression.type", "LZ4"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.zstd.level", "23"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "0:a"),
        ("leader.replication.throttled.replicas", "*,0:1"),
        ("remote.storage.enable", "true"),
        ("min.insync.replicas", "0"),
        ("max.message.bytes", "-1"),
        ("segment.index.bytes", "3"),
        ("flush.messages", "0"),
        ("max.compaction.lag.ms", "0"),
    ],
)
def test_refuses_what_kafka_refuses(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_config(name, text)
    assert str(caught.value).startswith(f"Invalid value {text} for configuration {name}: expected ")


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"expected a whole number from 1 to 9 or -1$"):
        validate_topic_config("compression.gzip.level", "fast")
    with pytest.raises(ConfigError, match=r"expected one of CreateTime, LogAppendTime$"):
        validate_topic_config("message.timestamp.type", "now")
    with pytest.raises(ConfigError, match=r"expected true or false$"):
        validate_topic_config("preallocate", "1")


@pytest.mark.parametrize("name", ["message.format.version", "no.such", "log.retention.ms"])
def test_an_unknown_topic_setting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^Unknown topic config name: {name}"):
        validate_topic_config(name, "1")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"retention\.m; did you mean retention\.ms\?$"):
        validate_topic_config("retention.m", "1")


def test_a_null_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Null value .* retention\.ms"):
        validate_topic_config("retention.ms", None)


def test_topic_settings_are_checked_together() -> None:
    broker = BrokerConfig()
    good = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}
    validate_topic_configs(good, broker)
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms \(6\) is greater"):
        validate_topic_configs(good | {"min.compaction.lag.ms": "6"}, broker)
    with pytest.raises(ConfigError, match="Null value"):
        validate_topic_configs({"retention.ms": None}, broker)


def test_a_secret_is_in_no_message() -> None:
    secret = Property("x.password", PASSWORD, None, "A secret.", pattern="[a-z]+")
    with pytest.raises(ConfigError) as caught:
        secret.parse("S3cret")
    assert "S3cret" not in str(caught.value)


# The places


def test_properties_files_are_read_as_java_reads_them() -> None:
    text = (
        "# comment\n! comment\n\n"
        "a=1\nb : 2\nc 3\n  d\t=\t4  \ne\nf=\n"
        "long=one,\\\n   two,\\\n   # three\n"
        "path=C\\:\\\\data\\tx\n"
        "key\\ with\\=signs=v\n"
        "word=caf\\u00e9\\q\n"
        "twice=1\r\ntwice=2\r\n"
        "even=x\\\\\n"
        "last=y\\"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4  ",
        "e": "",
        "f": "",
        "long": "one,two,# three",
        "path": "C:\\data\tx",
        "key with=signs": "v",
        "word": "caféq",
        "twice": "2",
        "even": "x\\",
        "last": "y",
    }


@pytest.mark.parametrize("escape", ["\\u00", "\\u00gg", "\\u"])
def test_a_broken_escape_names_its_line(escape: str) -> None:
    with pytest.raises(ConfigError, match="line 3: "):
        parse_properties(f"# x\na=1\nb={escape}\n")


def test_toml_tables_are_joined_by_dots() -> None:
    text = """
    "max.connections" = 5
    log.dirs = "data"
    listeners = ["A://:1", "B://:2"]
    [log]
    retention.ms = 1000
    preallocate = true
    cleaner.min.cleanable.ratio = 0.25
    """
    # One key cannot be both a dotted key and a table header's: write the table only.
    assert parse_toml(text.replace('log.dirs = "data"', "")) == {
        "max.connections": "5",
        "listeners": "A://:1,B://:2",
        "log.retention.ms": "1000",
        "log.preallocate": "true",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    with pytest.raises(ConfigError, match="quote a name"):
        parse_toml("max.connections = 5\nmax.connections.per.ip = 2")


@pytest.mark.parametrize("text", ["a = 2020-01-01", "a = [[1]]", "[[a]]\nb = 1"])
def test_toml_values_that_are_no_setting_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^a is neither"):
        parse_toml(text)


def test_environment_names() -> None:
    environ = {
        "KBROKER_CFG_LOG_RETENTION_MS": "1",
        "KBROKER_CFG_A__B___C_D": "2",
        "KBROKER_CFG_": "3",
        "KBROKER_PORT": "4",
        "KAFKA_LOG_RETENTION_MS": "5",
    }
    assert read_environment(environ) == {"log.retention.ms": "1", "a_b-c.d": "2"}
    assert read_environment(environ, "KAFKA_") == {"log.retention.ms": "5"}


def test_options() -> None:
    assert read_options(["a=1", "b = x=y", "a=2"]) == {"a": "2", "b": "x=y"}
    for bad in ("a", "=1", ""):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            read_options([bad])


def test_a_file_is_read_by_its_ending_and_errors_name_it(tmp_path: Path) -> None:
    toml, properties = tmp_path / "k.toml", tmp_path / "server.properties"
    toml.write_text("num.partitions = 3")
    properties.write_bytes("super.users=Jürgen".encode("latin-1"))
    assert read_file(toml) == {"num.partitions": "3"}
    assert read_file(properties) == {"super.users": "Jürgen"}
    toml.write_text("= 3")
    with pytest.raises(ConfigError, match=r"k\.toml: "):
        read_file(toml)
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read: No such file"):
        read_file(tmp_path / "gone.toml")


def test_the_strongest_place_wins_and_is_remembered(tmp_path: Path) -> None:
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


# A node's settings


def test_every_bad_value_is_told_with_its_place() -> None:
    environ = {"KBROKER_CFG_NUM_PARTITIONS": "none"}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(options=["node.id=-5"], environ=environ)
    first, second = str(caught.value).splitlines()
    assert first.endswith("num.partitions: expected a whole number of at least 1 (environment)")
    assert second.endswith("node.id: expected a whole number of at least 0 (option)")


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
def test_settings_that_cannot_be_together(options: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        BrokerConfig.load(options=options)


def test_unknown_and_future_settings_warn_or_fail() -> None:
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


def test_the_file_that_comes_with_kafka_starts_without_warnings() -> None:
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
    config = BrokerConfig([Layer("file", parse_properties(text))], strict=True)
    assert [notice.level for notice in config.notices] == ["info"]
    assert config.listeners == ("PLAINTEXT://:9092",)
    assert config.advertised_listeners == ("PLAINTEXT://localhost:9092",)
    assert config.log_dirs == ("/tmp/logs",)


def test_internal_topics_follow_the_number_of_nodes() -> None:
    names = ("offsets.topic.replication.factor", "transaction.state.log.min.isr")
    shown = [[BrokerConfig(nodes=nodes)[name] for name in names] for nodes in (1, 2, 3, 5)]
    assert shown == [[1, 1], [2, 1], [3, 2], [3, 2]]


def test_dynamic_settings_lie_over_static_ones() -> None:
    static = BrokerConfig.load(options=["message.max.bytes=10", "num.partitions=2"])
    everywhere = {"message.max.bytes": "20", "log.retention.ms": "5"}
    cluster = static.overlay(everywhere, origin="cluster", source=Source.DYNAMIC_DEFAULT_BROKER)
    node = cluster.overlay({"message.max.bytes": "30"}, origin="n", source=Source.DYNAMIC_BROKER)
    changed = node.overlay({"num.partitions": "9"}, origin="flag")
    assert [each["message.max.bytes"] for each in (static, cluster, node)] == [10, 20, 30]
    assert (changed.num_partitions, changed["message.max.bytes"]) == (9, 30)
    again = node.overlay({}, origin="node", source=Source.DYNAMIC_BROKER)
    assert (again["message.max.bytes"], again["log.retention.ms"]) == (20, 5)
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


def test_look_up_of_computed_names_refuses_other_types() -> None:
    config = BrokerConfig()
    for wrong in (config.integer, config.items):
        with pytest.raises(TypeError, match=r"flush\.policy"):
            wrong("flush.policy")
    with pytest.raises(TypeError, match="that is set"):
        config.integer("delete.topic.enable")
    with pytest.raises(KeyError):
        config["no.such"]


# A topic's settings


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
def test_the_most_precise_retention_wins(options: list[str], retention_ms: int) -> None:
    broker = BrokerConfig.load(options=options)
    assert TopicConfig({}, broker).retention_ms == retention_ms
    assert TopicConfig({"retention.ms": "77"}, broker).retention_ms == 77


def test_roll_jitter_and_flush_families() -> None:
    options = ["log.roll.hours=2", "log.roll.jitter.hours=1", "log.flush.scheduler.interval.ms=9"]
    config = TopicConfig({}, BrokerConfig.load(options=options))
    assert (config.segment_ms, config.segment_jitter_ms) == (7_200_000, 3_600_000)
    assert config["flush.ms"] == 9


def test_a_topic_falls_back_to_the_broker() -> None:
    broker = BrokerConfig.load(options=["log.cleanup.policy=compact", "log.segment.bytes=2000000"])
    plain = TopicConfig({}, broker)
    own = TopicConfig({"cleanup.policy": "delete", "internal.segment.bytes": "512"}, broker)
    assert (plain.compacted, plain.segment_bytes) == (True, 2_000_000)
    assert (own.compacted, own.segment_bytes) == (False, 512)
    with pytest.raises(ConfigError, match=r"no\.such"):
        TopicConfig({"no.such": "1"}, broker)
    with pytest.raises(KeyError):
        plain.effective("no.such")


# DescribeConfigs


def test_describe_topic_as_kafka_answers() -> None:
    """Values, sources and synonyms that Kafka 4.3.0 gave with the same broker settings."""
    options = [
        "log.retention.hours=24",
        "log.segment.bytes=10485760",
        "log.roll.ms=3600000",
        "log.flush.interval.ms=1000",
        "compression.type=lz4",
    ]
    overrides = {"min.insync.replicas": "1", "cleanup.policy": "compact", "segment.ms": "777777"}
    entries = describe_topic(overrides, BrokerConfig.load(options=options))
    shown = {
        e.name: (e.value, e.source, e.is_default, [tuple(s) for s in e.synonyms]) for e in entries
    }
    topic_, static, default = Source.TOPIC, Source.STATIC_BROKER, Source.DEFAULT
    assert shown["retention.ms"] == ("86400000", default, True, [])
    assert shown["segment.jitter.ms"] == ("0", default, True, [])
    assert shown["preallocate"] == ("false", default, True, [("log.preallocate", "false", default)])
    assert shown["remote.storage.enable"] == ("false", default, True, [])
    assert shown["segment.bytes"] == (
        "10485760",
        static,
        False,
        [("log.segment.bytes", "10485760", static), ("log.segment.bytes", "1073741824", default)],
    )
    assert shown["flush.ms"] == (
        "1000",
        static,
        False,
        [
            ("log.flush.interval.ms", "1000", static),
            ("log.flush.scheduler.interval.ms", "9223372036854775807", default),
        ],
    )
    assert shown["segment.ms"] == (
        "777777",
        topic_,
        False,
        [
            ("segment.ms", "777777", topic_),
            ("log.roll.ms", "3600000", static),
            ("log.roll.hours", "168", default),
        ],
    )
    assert shown["cleanup.policy"][3] == [
        ("cleanup.policy", "compact", topic_),
        ("log.cleanup.policy", "delete", default),
    ]
    assert shown["compression.type"][:2] == ("lz4", static)


def test_describe_topic_kinds() -> None:
    entries = describe_topic({}, BrokerConfig())
    kafka = kafka_settings("topic")
    assert [(e.name, Type(e.type).name) for e in entries] == [
        (k.name, k.type) for k in kafka.values()
    ]
    assert not any(each.read_only or each.sensitive for each in entries)
    assert all(each.doc for each in entries)


def test_describe_broker() -> None:
    options = ["log.roll.ms=5", "ssl.key.password=S3cret", "node.id=3", "log.retention.hours=2"]
    entries = describe_broker(BrokerConfig.load(options=options))
    assert [each.name for each in entries] == list(BROKER_PROPERTIES)
    static, default = Source.STATIC_BROKER, Source.DEFAULT
    password = entry(entries, "ssl.key.password")
    assert (password.value, password.sensitive, password.source) == (None, True, static)
    assert password.synonyms == [("ssl.key.password", None, static)]
    assert "S3cret" not in repr(entries)
    assert entry(entries, "log.roll.ms").synonyms == [
        ("log.roll.ms", "5", static),
        ("log.roll.hours", "168", default),
    ]
    assert entry(entries, "log.roll.hours").synonyms == [("log.roll.hours", "168", default)]
    unset = entry(entries, "log.retention.ms")
    assert (unset.value, unset.source, unset.synonyms) == (None, default, [])
    assert entry(entries, "broker.id").value == "3"
    assert entry(entries, "num.partitions").read_only
    assert not entry(entries, "message.max.bytes").read_only


# Documentation


def test_the_committed_page_is_the_generated_one() -> None:
    committed = (ROOT / "docs/configuration.md").read_text()
    assert committed == document(), "run: python -m kbroker.config > docs/configuration.md"


def test_the_page_has_every_setting_and_every_difference() -> None:
    page = document()
    differences = page.split("## What differs")[1].split("## DescribeConfigs")[0]
    for each in (*BROKER_PROPERTIES.values(), *TOPIC_PROPERTIES.values()):
        assert f"| `{each.name}` |" in page, each.name
        if each.own or each.kafka_default is not None or each.effect is not Effect.APPLIED:
            assert f"`{each.name}`" in differences, each.name


def test_importing_the_settings_stays_cheap() -> None:
    """It is on the way of every start: nothing heavy may be imported along with it."""
    code = "import sys; before = set(sys.modules); import kbroker.config; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    heavy = {"trio", "asyncio", "ssl", "socket", "difflib", "tomllib", "decimal", "click"}
    assert not heavy & set(run.stdout.split())


def test_described_topics_of_one_broker_are_as_of_brokers_without_cache(
    pytestconfig: pytest.Config,
) -> None:
    """Random settings of topics and of the broker, each described with and without a cache."""
    random = Random(pytestconfig.getoption("--seed"))
    given = [
        {},
        {"log.retention.hours": "5"},
        {"log.retention.ms": "7", "min.insync.replicas": "1"},
        {"compression.type": "zstd"},
    ]
    own = {"retention.ms": "1", "cleanup.policy": "compact", "no.such": "1", "segment.ms": "x"}
    for values in given:
        kept = BrokerConfig.load(options=values)
        for _ in range(10):
            names = random.sample(sorted(own), random.randrange(len(own)))
            overrides = {name: own[name] for name in names}
            fresh = BrokerConfig.load(options=values)
            topic = TopicConfig.stored(overrides, fresh)
            described = describe_topic(overrides, kept)
            assert described == describe_topic(overrides, fresh)
            assert [each.name for each in described] == sorted(each.name for each in described)
            shown = {each.name: each.value for each in described}
            for name, setting in TOPIC_PROPERTIES.items():
                if not setting.internal:
                    assert shown[name] == setting.format(topic.effective(name))
            sources = {each.name for each in described if each.source is Source.TOPIC}
            assert sources == topic.overrides.keys()


def test_default_settings_of_topics_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerConfig.load()
    first = describe_topic({}, broker)
    asked = []
    effective = TopicConfig.effective

    def counted(config: TopicConfig, name: str) -> Value:
        asked.append(name)
        return effective(config, name)

    monkeypatch.setattr(TopicConfig, "effective", counted)
    assert describe_topic({}, broker) == first
    assert describe_topic({"retention.ms": "7"}, broker) != first
    assert asked == ["retention.ms"]
    changed = broker.overlay(
        {"log.retention.ms": "8"}, origin="test", source=Source.DYNAMIC_DEFAULT_BROKER
    )
    (retention,) = [e for e in describe_topic({}, changed) if e.name == "retention.ms"]
    assert (retention.value, retention.source) == ("8", Source.DYNAMIC_DEFAULT_BROKER)
