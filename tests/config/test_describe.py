"""Entries of DescribeConfigs for brokers and topics."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.config import (
    BROKER_PROPERTIES,
    TOPIC_PROPERTIES,
    BrokerConfig,
    Source,
    TopicConfig,
    Type,
    Value,
    describe_broker,
    describe_every_broker,
    describe_topic,
)

from .entries import entry, kafka_settings


def test_describe_topic_equals_kafka_response() -> None:
    """Kafka 4.3.0 returned these values, sources and synonyms with the same broker settings."""
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


def test_describe_topic_lists_kafkas_settings_and_types() -> None:
    entries = describe_topic({}, BrokerConfig())
    kafka = kafka_settings("topic")
    assert [(e.name, Type(e.type).name) for e in entries] == [
        (k.name, k.type) for k in kafka.values()
    ]
    assert not any(each.read_only or each.sensitive for each in entries)
    assert all(each.doc for each in entries)


def test_describe_broker_hides_passwords_and_lists_synonyms() -> None:
    options = ["log.roll.ms=5", "ssl.key.password=S3cret", "node.id=3", "log.retention.hours=2"]
    entries = describe_broker(BrokerConfig.load(options=options))
    names = [each.name for each in entries]
    assert names == sorted({*BROKER_PROPERTIES, *kafka_settings("broker")})
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


def test_describe_broker_shows_settings_without_meaning_like_kafka() -> None:
    """Kafka's other settings have its types and defaults, and show what was configured."""
    options = ["sasl.oauthbearer.assertion.private.key.passphrase=S3cret", "request.timeout.ms=7"]
    static, default = Source.STATIC_BROKER, Source.DEFAULT
    entries = describe_broker(BrokerConfig.load(options=options))
    shown = {each.name: each for each in entries if each.name not in BROKER_PROPERTIES}
    kafka = kafka_settings("broker")
    for name, each in shown.items():
        expected = (kafka[name].type, kafka[name].change == "read-only")
        assert (Type(each.type).name, each.read_only) == expected, name
        if each.source is default:
            assert each.value == (None if kafka[name].default == "-" else kafka[name].default)
    timeout = shown["request.timeout.ms"]
    assert timeout.synonyms == [(timeout.name, "7", static), (timeout.name, "30000", default)]
    secret = shown["sasl.oauthbearer.assertion.private.key.passphrase"]
    assert (secret.value, secret.sensitive, secret.source) == (None, True, static)
    assert "S3cret" not in repr(entries)


def test_describe_every_broker_shows_only_changed_settings_without_meaning() -> None:
    source = Source.DYNAMIC_DEFAULT_BROKER
    values = {"log.cleaner.threads": "2"}
    broker = BrokerConfig().overlay(values, origin="test", source=source)
    (found,) = describe_every_broker(broker)
    assert (found.name, found.value, found.source) == ("log.cleaner.threads", "2", source)


def test_describe_topic_with_cache_equals_uncached_result(
    pytestconfig: pytest.Config,
) -> None:
    """The test uses random settings of topics and of the broker."""
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


def test_describe_topic_caches_default_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerConfig.load()
    first = describe_topic({}, broker)
    described = []
    effective = TopicConfig.effective

    def counted(config: TopicConfig, name: str) -> Value:
        described.append(name)
        return effective(config, name)

    monkeypatch.setattr(TopicConfig, "effective", counted)
    assert describe_topic({}, broker) == first
    assert describe_topic({"retention.ms": "7"}, broker) != first
    assert described == ["retention.ms"]
    changed = broker.overlay(
        {"log.retention.ms": "8"}, origin="test", source=Source.DYNAMIC_DEFAULT_BROKER
    )
    (retention,) = [e for e in describe_topic({}, changed) if e.name == "retention.ms"]
    assert (retention.value, retention.source) == ("8", Source.DYNAMIC_DEFAULT_BROKER)
