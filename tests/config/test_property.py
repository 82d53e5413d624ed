"""Values that a single setting accepts, and types of its attribute."""

from __future__ import annotations

from typing import assert_type

import pytest

from kbroker.config import (
    TOPIC_PROPERTIES,
    BrokerConfig,
    ClientMetricsConfig,
    ConfigError,
    GroupConfig,
    Property,
    Source,
    TopicConfig,
    describe_topic,
    validate_topic_config,
)
from kbroker.config.property import PASSWORD, properties_of

from .entries import entry, settings_of


def test_every_setting_is_declared_once_and_read_by_attribute() -> None:
    """An overridden attribute or a duplicate name would hide a setting without an error."""
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


def test_setting_attributes_have_precise_types() -> None:
    """mypy checks the types in this test."""
    config = BrokerConfig()
    assert_type(config.node_id, int)
    assert_type(config.flush_policy, str)
    assert_type(config.allow_delete_topics, bool)
    assert_type(config.log_cleaner_min_cleanable_ratio, float)
    assert_type(config.group_consumer_assignors, tuple[str, ...])
    assert_type(BrokerConfig.node_id, Property[int])
    assert BrokerConfig.node_id.name == "node.id"


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
        ("remote.copy.lag.ms", "-1", "-1"),
        ("max.decompressed.message.bytes", "2147483639", "2147483639"),
    ],
)
def test_topic_settings_accept_values_that_kafka_accepts(name: str, text: str, shown: str) -> None:
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
        ("remote.copy.lag.bytes", "-2"),
        ("max.decompressed.message.bytes", "0"),
        ("max.decompressed.message.bytes", "2147483640"),
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
def test_topic_settings_reject_values_that_kafka_rejects(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_config(name, text)
    assert str(caught.value).startswith(f"Invalid value {text} for configuration {name}: expected ")


def test_invalid_value_error_names_allowed_values() -> None:
    with pytest.raises(ConfigError, match=r"expected an integer from 1 to 9 or -1$"):
        validate_topic_config("compression.gzip.level", "fast")
    with pytest.raises(ConfigError, match=r"expected one of CreateTime, LogAppendTime$"):
        validate_topic_config("message.timestamp.type", "now")
    with pytest.raises(ConfigError, match=r"expected true or false$"):
        validate_topic_config("preallocate", "1")


def test_invalid_value_error_hides_secret() -> None:
    secret = Property("x.password", PASSWORD, None, "A secret.", pattern="[a-z]+")
    with pytest.raises(ConfigError) as caught:
        secret.parse("S3cret")
    assert "S3cret" not in str(caught.value)


def test_list_of_distinct_items_rejects_duplicates() -> None:
    tags = BrokerConfig.group_streams_rack_aware_assignment_tags
    assert tags.parse("zone, rack") == ("zone", "rack")
    with pytest.raises(ConfigError, match=r"list without duplicates$"):
        tags.parse("zone,rack,zone")


def test_typed_lookup_rejects_other_types() -> None:
    config = BrokerConfig()
    for wrong in (config.integer, config.items):
        with pytest.raises(TypeError, match=r"flush\.policy"):
            wrong("flush.policy")
    with pytest.raises(TypeError, match="not an integer, or unset"):
        config.integer("delete.topic.enable")
    with pytest.raises(KeyError):
        config["no.such"]
