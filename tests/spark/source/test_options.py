"""Options that the connector rejects are rejected with the same message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kbroker.spark.source.client import settings
from kbroker.spark.source.offsets import EARLIEST, LATEST
from kbroker.spark.source.options import (
    AtOffsets,
    AtTimestamps,
    Everywhere,
    OptionError,
    SinkOptions,
    SourceOptions,
)
from kbroker.spark.source.partitions import WirePartitions

from .topics import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}

REJECTED_BY_BOTH = [
    ({}, "following options must be specified"),
    ({"subscribe": "a", "assign": '{"a": [0]}'}, "Only one of the following options"),
    ({"subscribe": " , "}, "No topics to subscribe"),
    ({"assign": "a"}, "No topicpartitions to assign"),
    ({"subscribePattern": " "}, "Pattern to subscribe is empty"),
    ({"subscribe": "a", "minPartitions": "0"}, "minPartitions must be positive"),
    ({"subscribe": "a", "startingOffsets": "latest"}, "starting offset can't be latest"),
    ({"subscribe": "a", "endingOffsets": "earliest"}, "ending offset can't be earliest"),
    ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "can't be latest for batch"),
    ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, "can't be earliest for batch"),
    ({"subscribe": "a", "startingOffsets": "soon"}, "Expected e.g."),
    ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "'auto.offset.reset' is not supp"),
    ({"subscribe": "a", "kafka.key.deserializer": "X"}, "'key.deserializer' is not supported"),
    ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supp"),
    ({"subscribe": "a", "kafka.interceptor.classes": "X"}, "'interceptor.classes' is not supp"),
]


@pytest.mark.parametrize(
    ("given", "message"), REJECTED_BY_BOTH, ids=[message for _, message in REJECTED_BY_BOTH]
)
def test_options_rejected_by_connector_are_rejected(
    spark: SparkSession, given: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.read.format(FORMATS[0]).options(**SERVERS, **given).load().collect()
    with pytest.raises(OptionError, match=message):
        check(given)


def check(given: dict[str, str]) -> None:
    """Run the checks that precede a batch read."""
    options = SourceOptions.parse(SERVERS | given)
    options.check_batch()
    WirePartitions(options)


def test_option_errors_reach_spark_user(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"unknown option: startingofsets \(valid: assign, sub"):
        spark.read.format("kbroker").options(**SERVERS, startingOfsets="latest").load()
    reading = spark.read.format("kbroker").options(**SERVERS, subscribe="a").schema("a int")
    with pytest.raises(Exception, match="fixed schema"):
        reading.load().collect()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger must be an integer"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "higher than the maxOffsets"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration"),
        ({"startingTimestamp": "noon"}, "startingTimestamp must be milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be error or latest"),
        ({"subscribePattern": "("}, "not a valid Python regular expression"),
        ({"kafka.isolation.level": "serial"}, "must be read_committed or read_uncommitted"),
        ({"kafka.sasl.login.class": "org.x.Y"}, "it names Java classes"),
        ({"kafka.ssl.truststore.location": "/a.jks"}, "is a JKS file, but librdkafka reads only"),
        ({"kafka.sasl.jaas.config": "x.Y required;"}, "must contain username and password"),
        ({"kafka.batch.sise": "1"}, "No such configuration property"),
    ],
)
def test_invalid_option_values_are_rejected(given: dict[str, str], message: str) -> None:
    topics = {} if "subscribePattern" in given else {"subscribe": "a"}
    with pytest.raises(OptionError, match=message):
        check(topics | given)


def test_missing_bootstrap_servers_are_rejected() -> None:
    with pytest.raises(OptionError, match=r"'kafka.bootstrap.servers' must be specified"):
        SourceOptions.parse({"subscribe": "a"})
    with pytest.raises(OptionError, match=r"'kafka.bootstrap.servers' must be specified"):
        SinkOptions.parse({"topic": "a"})


def test_option_names_ignore_case_and_timestamps_take_precedence() -> None:
    read = SourceOptions.parse(
        SERVERS
        | {
            "SUBSCRIBE": " b, a ,b",
            "StartingOffsets": "Earliest",
            "startingoffsetsbytimestamp": '{"a": {"0": 5}}',
            "endingOffsets": '{"a": {"0": -1}}',
            "INCLUDEHEADERS": "TRUE",
            "maxTriggerDelay": "2m",
        }
    )
    assert read.subscribe == ("a", "b")
    assert read.starting == AtTimestamps({("a", 0): 5}, or_latest=False)
    assert read.ending == AtOffsets({("a", 0): LATEST})
    assert read.include_headers
    assert read.max_trigger_delay_seconds == 120
    plain = SourceOptions.parse(SERVERS | {"subscribe": "a", "startingOffsets": "earliest"})
    assert plain.starting == Everywhere(EARLIEST)


def test_ending_options_are_rejected_for_streams() -> None:
    for name, value in (("endingOffsets", "latest"), ("endingTimestamp", "1")):
        read = SourceOptions.parse(SERVERS | {"subscribe": "a", name: value})
        with pytest.raises(OptionError, match="not valid in streaming queries"):
            read.check_stream()


def test_inconsistent_start_and_end_offsets_are_rejected() -> None:
    def between(start: str, end: str) -> None:
        check({"subscribe": "a", "startingOffsets": start, "endingOffsets": end})

    between('{"a":{"0":5}}', '{"a":{"0":-1}}')
    with pytest.raises(OptionError, match="start offset 5 is greater than end offset 4 for a-0"):
        between('{"a":{"0":5}}', '{"a":{"0":4}}')
    with pytest.raises(OptionError, match="list different partitions: a-0 and a-1"):
        between('{"a":{"0":5}}', '{"a":{"1":9}}')


def test_java_client_settings_are_translated_for_librdkafka() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" '
    found = settings(
        {
            "bootstrap.servers": "b:1",
            "fetch.max.wait.ms": "7",
            "max.poll.records": "20000",
            "buffer.memory": "2048",
            "sasl.jaas.config": login + 'password="a\\"b";',
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert found == {
        "bootstrap.servers": "b:1",
        "fetch.wait.max.ms": "7",
        "queue.buffering.max.kbytes": 2,
        "sasl.username": "me",
        "sasl.password": 'a"b',
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
