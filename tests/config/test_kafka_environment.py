"""Settings in the environment variables of Kafka's container images."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerConfig, ConfigError, read_kafka_environment
from kbroker.config.kafka_environment import IGNORED
from kbroker.config.sources import read_environment, variable_of
from kbroker.config.tables import BROKER_PROPERTIES


def test_kafka_variables_map_to_settings() -> None:
    found = read_kafka_environment(
        {
            "KAFKA_LOG_RETENTION_MS": "1",
            "KAFKA_A__B___C": "2",
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_CFG_NUM_PARTITIONS": "4",
            "ALLOW_PLAINTEXT_LISTENER": "yes",
            "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
            "KBROKER_CFG_NODE_ID": "7",
            **dict.fromkeys(IGNORED, "x"),
        }
    )
    assert found.values == {"log.retention.ms": "1", "a_b-c": "2", "num.partitions": "4"}
    assert found.cluster_id == "5L6g3nShT-eMCtK--X86sw"
    assert (found.log_level, found.topics) == ("", [])


@pytest.mark.parametrize(
    ("text", "level"),
    [("WARN", "warning"), ("fatal", "critical"), ("TRACE", "debug"), ("Info", "info")],
)
def test_kafka_log_level_maps_to_python_level(text: str, level: str) -> None:
    assert read_kafka_environment({"KAFKA_LOG4J_ROOT_LOGLEVEL": text}).log_level == level


def test_create_topics_variable_is_parsed() -> None:
    text = "t1:3:1,t2:1:1:compact\n t3"
    assert [
        tuple(each) for each in read_kafka_environment({"KAFKA_CREATE_TOPICS": text}).topics
    ] == [
        ("t1", 3, 1, {}),
        ("t2", 1, 1, {"cleanup.policy": "compact"}),
        ("t3", -1, -1, {}),
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {"KAFKA_CREATE_TOPICS": ":1:1"},
        {"KAFKA_CREATE_TOPICS": "t:x:1"},
        {"KAFKA_CREATE_TOPICS": "t:1:1:compact:more"},
        {"CLUSTER_ID": "a b"},
    ],
)
def test_invalid_kafka_variable_is_rejected(environ: dict[str, str]) -> None:
    (name,) = environ
    with pytest.raises(ConfigError, match=f"^{name}: "):
        read_kafka_environment(environ)


@pytest.mark.parametrize(
    ("environ", "listeners", "advertised"),
    [
        ({"KAFKA_ADVERTISED_HOST_NAME": "b"}, ":9092", "b:9092"),
        ({"KAFKA_ADVERTISED_HOST_NAME": "b", "KAFKA_ADVERTISED_PORT": "19"}, ":19", "b:19"),
        ({"KAFKA_ADVERTISED_PORT": "19", "KAFKA_PORT": "9093"}, ":9093", ":19"),
        ({"KAFKA_ADVERTISED_HOST_NAME": "b", "KAFKA_PORT": "tcp://10.0.0.1:9"}, ":9092", "b:9092"),
        (
            {"KAFKA_ADVERTISED_HOST_NAME": "b", "KAFKA_LISTENERS": "PLAINTEXT://:7"},
            ":7",
            None,
        ),
        (
            {"KAFKA_ADVERTISED_HOST_NAME": "b", "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://c:8"},
            "0.0.0.0:8",
            "c:8",
        ),
    ],
)
def test_wurstmeister_address_is_advertised(
    environ: dict[str, str], listeners: str, advertised: str | None
) -> None:
    config = BrokerConfig.load(kafka_values=read_kafka_environment(environ).values)
    assert config.all_listeners == (f"PLAINTEXT://{listeners}",)
    expected = () if advertised is None else (f"PLAINTEXT://{advertised}",)
    assert config.all_advertised_listeners == expected
    assert [each.text for each in config.notices if each.level == "warning"] == []


def test_listeners_default_to_advertised_ports() -> None:
    advertised = "PLAINTEXT://kafka:9092,HOST://[::1]:29092,OTHER://:9094"
    given = {"advertised.listeners": advertised}
    config = BrokerConfig.load(kafka_values=given)
    assert config.all_listeners == (
        "PLAINTEXT://0.0.0.0:9092",
        "HOST://0.0.0.0:29092",
        "OTHER://0.0.0.0:9094",
    )
    for options, values in (
        (["listeners=PLAINTEXT://:1"], given),
        ([], {**given, "listeners": "PLAINTEXT://:1"}),
    ):
        config = BrokerConfig.load(options=options, kafka_values=values)
        assert config.all_listeners == ("PLAINTEXT://:1",)


def test_notice_lists_settings_from_kafka_variables() -> None:
    config = BrokerConfig.load(kafka_values={"num.partitions": "2", "node.id": "3"})
    assert [each.text for each in config.notices] == [
        "Settings from KAFKA_*: broker.id, node.id, num.partitions"
    ]


def test_every_setting_has_environment_variable() -> None:
    for name in (*BROKER_PROPERTIES, "a_b-c.d"):
        assert read_environment({variable_of(name): "1"}) == {name: "1"}
