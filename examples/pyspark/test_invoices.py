"""Tests of the job, including failures that rarely occur in production."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import invoices
import pytest
from kafka import KafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from kbroker.testing.spark import KafkaUtils

Run = Callable[[], StreamingQuery]


@pytest.fixture
def run(spark: SparkSession, kafka: KafkaUtils, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts the job, which resumes at its checkpoint."""
    queries: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        queries.append(invoices.start(spark, kafka.broker, str(tmp_path / "checkpoint")))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def order(number: int, net: float = 100.0) -> str:
    return json.dumps({"id": str(number), "customer": "ada", "net": net})


def invoice(number: int, gross: float = 119.0) -> dict[str, Any]:
    return {"id": str(number), "customer": "ada", "gross": gross}


def undo_commit_of_first_batch(checkpoint: Path) -> None:
    """Change the checkpoint to its state between the write and the commit of the first batch."""
    later = [
        path for path in (checkpoint / "offsets").iterdir() if path.name not in ("0", ".0.crc")
    ]
    for path in [*later, *(checkpoint / "commits").iterdir()]:
        path.unlink()


def invoices_in(kafka: KafkaUtils) -> dict[str, Any]:
    """Return the last invoice of each order."""
    records = kafka.kbroker.records("invoices")
    return {(record.key or b"").decode(): record.json for record in records}


def test_orders_become_invoices(run: Run, kafka: KafkaUtils, spark: SparkSession) -> None:
    kafka.send_messages("orders", [(None, order(1)), (None, order(2, net=10.5))])
    run().processAllAvailable()
    found = kafka.get_all_records(spark, "invoices")
    assert {key: json.loads(value) for key, value in found.items()} == {
        "1": invoice(1),
        "2": invoice(2, gross=12.5),
    }


def test_job_survives_broker_restart(run: Run, kafka: KafkaUtils) -> None:
    query = run()
    kafka.wait_for_query_alive(query)
    kafka.send_messages("orders", [(None, order(1))])
    kafka.assert_eventually(lambda: list(invoices_in(kafka)), ["1"])
    kafka.kbroker.restart()
    kafka.send_messages("orders", [(None, order(2))])
    kafka.assert_eventually(lambda: sorted(invoices_in(kafka)), ["1", "2"])
    assert query.exception() is None


def test_order_sent_twice_produces_one_invoice(run: Run, kafka: KafkaUtils) -> None:
    """The response to a non-idempotent producer is lost, so it sends the order again."""
    kafka.kbroker.fault("Produce", topic="orders", at="after").disconnect()
    producer = KafkaProducer(
        bootstrap_servers=kafka.broker, enable_idempotence=False, retries=5, retry_backoff_ms=10
    )
    producer.send("orders", order(1).encode(), partition=0).get(10)
    producer.close()
    assert len(kafka.kbroker.records("orders")) == 2
    run().processAllAvailable()
    assert len(kafka.kbroker.records("invoices")) == 1


def test_repeated_batch_writes_same_invoices(run: Run, kafka: KafkaUtils, tmp_path: Path) -> None:
    """The job crashes between the write of a batch and its commit."""
    kafka.send_messages("orders", [(None, order(1)), (None, order(2))])
    query = run()
    query.processAllAvailable()
    query.stop()
    undo_commit_of_first_batch(tmp_path / "checkpoint")
    run().processAllAvailable()
    copies = Counter(record.text for record in kafka.kbroker.records("invoices"))
    assert len(copies) == 2
    assert set(copies.values()) == {2}


def test_partitions_added_at_runtime_are_read(run: Run, kafka: KafkaUtils) -> None:
    """Spark does not use a consumer group: it discovers new partitions by itself."""
    query = run()
    kafka.send_messages("orders", [(None, order(1))])
    query.processAllAvailable()
    kafka.admin_client.create_partitions({"orders": 4})
    for partition in range(4):
        kafka.kbroker.produce("orders", order(2 + partition), partition=partition)
    kafka.assert_eventually(lambda: sorted(invoices_in(kafka)), ["1", "2", "3", "4", "5"])


def test_invalid_orders_are_rejected(run: Run, kafka: KafkaUtils) -> None:
    invalid = ["no json", '{"id": "7"}', '{"id": "8", "customer": "bob", "net": -1}', "no json"]
    kafka.send_messages("orders", [("k", text) for text in invalid])
    kafka.send_messages("orders", [("k", order(1))])
    run().processAllAvailable()
    assert sorted(r.text for r in kafka.kbroker.records("orders.rejected")) == sorted(invalid)
    assert invoices_in(kafka) == {"1": invoice(1)}


def test_job_reports_records_that_expired_unread(run: Run, kafka: KafkaUtils) -> None:
    """Retention is one day: the job must not continue as if no records were lost."""
    kafka.send_messages("orders", [(None, order(1))])
    query = run()
    query.processAllAvailable()
    query.stop()
    kafka.send_messages("orders", [(None, order(2))])
    kafka.kbroker.clock.advance(hours=25)
    assert kafka.kbroker.records("orders") == []
    kafka.send_messages("orders", [(None, order(3))])
    with pytest.raises(StreamingQueryException, match="Some data may have been lost"):
        run().processAllAvailable()
