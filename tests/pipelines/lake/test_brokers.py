"""Tests of the metadata that the lake stores."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Uuid

from kbroker.pipelines.lake.brokers import as_kafka_writes


def test_topic_id_is_valid_in_directory_name() -> None:
    number = Uuid(-289360691352306693, -1)
    assert {"+", "/"} <= set(str(number))
    assert as_kafka_writes(number) == str(number).replace("+", "-").replace("/", "_")
    assert Path("t@" + as_kafka_writes(number)).name.startswith("t@")
