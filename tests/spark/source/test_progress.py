"""Progress stands in a consumer group, for both formats, and no group is joined for it."""

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
def test_the_ends_of_batches_are_committed(
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


def test_progress_is_committed_when_asked_for_in_another_thread(
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


def test_spark_connect_is_refused_with_the_way_out() -> None:
    query = type("StreamingQuery", (), {"__module__": "pyspark.sql.connect.streaming.query"})()
    with pytest.raises(OptionError, match="commitToGroup"):
        commit_progress(query, "g", "127.0.0.1:1")


def test_a_group_in_use_refuses_and_that_is_said(broker: LocalBroker) -> None:
    broker.create_topic("used")
    member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "used"})
    member.subscribe(["used"])
    # Until it has its partitions: a client that is closed while they are on their way to it may hang.
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


def test_lag_is_what_is_there_and_not_read() -> None:
    kafka = {"latestOffset": '{"a":{"0":5,"1":7}}', "endOffset": '{"a":{"0":2,"1":7}}'}
    python = {"latestOffset": {"b": {"0": 4}}, "endOffset": {}}
    both = {"latestOffset": {"b": {"0": 4}}, "endOffset": {"b": {"0": 3}}}
    assert lag(progress(kafka, both)) == 4
    assert lag(progress(kafka, python)) is None
    assert lag(progress({"latestOffset": "7", "endOffset": "3"})) is None
