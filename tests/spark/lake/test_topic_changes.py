"""Transactions, new partitions and records that are deleted before they are archived."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException

from kbroker.pipelines.lake import running
from kbroker.testing import LocalBroker

from .lakes import archive, conf_of, payloads, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_transaction(broker: LocalBroker, value: bytes, *, committed: bool) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", value, partition=0)
    producer.flush()
    if committed:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def test_archiver_follows_transactions_new_partitions_and_deleted_records(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    write_transaction(broker, b'{"a": 1}', committed=True)
    write_transaction(broker, b'{"a": 2}', committed=False)
    conf = conf_of(broker, tmp_path, "t")
    archive(spark, conf)
    assert payloads(tmp_path, "t") == [{"a": 1}]

    admin.create_partitions([NewPartitions("t", 2)])["t"].result()
    produce(broker, "t", [{"a": 3}], partition=1)
    archive(spark, conf)
    assert payloads(tmp_path, "t", 1) == [{"a": 3}]

    produce(broker, "t", [{"a": number} for number in range(4, 9)], partition=1)
    kept = confluent_kafka.TopicPartition("t", 1, 4)
    next(iter(admin.delete_records([kept]).values())).result()
    with pytest.raises(StreamingQueryException) as failure:
        archive(spark, conf)
    assert "--allow-loss" in running._failure_message("t", str(failure.value), conf)

    archive(spark, conf_of(broker, tmp_path, "t", allow_loss=True))
    assert payloads(tmp_path, "t", 1) == [{"a": 3}, {"a": 7}, {"a": 8}]
    assert payloads(tmp_path, "t", 0) == [{"a": 1}]
