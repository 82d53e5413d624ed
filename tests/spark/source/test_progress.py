"""Progress of a query is committed to a consumer group, for both formats, without joining it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from kbroker.spark import commit_progress, lag
from kbroker.spark.source.commit import GroupCommits
from kbroker.spark.source.options import OptionError
from kbroker.testing import LocalBroker

from .topics import FORMATS, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("kind", FORMATS)
def test_end_offsets_of_batches_are_committed(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, kind: str
) -> None:
    broker.create_topic("read", 2)
    produce(broker, "read", ["a", "b"])
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "read"}
    rows = spark.readStream.format(kind).options(**servers, startingOffsets="earliest").load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writing.trigger(processingTime="200 milliseconds").start()
    commits = commit_progress(query, f"{kind}-progress", broker.bootstrap_servers)
    try:
        broker.wait_for_commit(f"{kind}-progress", "read", 0, 2, timeout=60)
        produce(broker, "read", ["c"], partition=1)
        broker.wait_for_commit(f"{kind}-progress", "read", 1, 1, timeout=60)
    finally:
        query.stop()
        commits.stop()

    group = broker.group(f"{kind}-progress")
    assert group is not None
    assert list(group.members) == []
    assert commits.last_error is None
    assert broker.lag(f"{kind}-progress") == 0


def test_progress_is_committed_if_started_in_other_thread(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("read")
    produce(broker, "read", ["a"])
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "read"}
    rows = spark.readStream.format("kbroker").options(**servers, startingOffsets="earliest").load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writing.trigger(processingTime="200 milliseconds").start()
    with ThreadPoolExecutor(1) as threads:
        commits = threads.submit(
            commit_progress, query, "of-a-thread", broker.bootstrap_servers
        ).result()
    try:
        broker.wait_for_commit("of-a-thread", "read", 0, 1, timeout=60)
    finally:
        query.stop()
        commits.stop()


def test_spark_connect_error_names_alternative() -> None:
    query = type("StreamingQuery", (), {"__module__": "pyspark.sql.connect.streaming.query"})()
    with pytest.raises(OptionError, match="commitToGroup"):
        commit_progress(query, "g", "127.0.0.1:1")


def test_commit_to_group_with_members_reports_error(broker: LocalBroker) -> None:
    broker.create_topic("used")
    member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "used"})
    member.subscribe(["used"])
    # Wait for the assignment: closing a client during a rebalance may hang.
    give_up_at = time.monotonic() + 60
    while not member.assignment():
        member.poll(0.1)
        assert time.monotonic() < give_up_at
    commits = GroupCommits("used", {"bootstrap.servers": broker.bootstrap_servers})
    try:
        commits.commit({("used", 0): 1})
        assert commits.last_error is not None
        assert broker.committed("used") == {}
    finally:
        commits.close()
        member.close()


def progress(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"sources": list(sources)}


def test_lag_is_number_of_unread_records() -> None:
    kafka = {"latestOffset": '{"a":{"0":5,"1":7}}', "endOffset": '{"a":{"0":2,"1":7}}'}
    python = {"latestOffset": {"b": {"0": 4}}, "endOffset": {}}
    both = {"latestOffset": {"b": {"0": 4}}, "endOffset": {"b": {"0": 3}}}
    assert lag(progress(kafka, both)) == 4
    assert lag(progress(kafka, python)) is None
    assert lag(progress({"latestOffset": "7", "endOffset": "3"})) is None
