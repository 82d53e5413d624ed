"""Streams: start offsets, batch limits, resumption and lost records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.spark import lag
from kbroker.spark.source.options import OptionError, SourceOptions
from kbroker.spark.source.stream import HAS_READ_LIMITS, StreamReader, stream_reader
from kbroker.testing import LocalBroker

from .topics import delete_before, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stream:
    """A query with a checkpoint; each run reads all available records."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, directory: Path) -> None:
        self.spark = spark
        self.servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        self.directory = directory
        self.batches: list[list[str]] = []
        self.progress: list[Any] = []

    def run(self, kind: str = "kbroker", **options: str) -> list[list[str]]:
        """Run with availableNow and return the values of each batch that has any."""
        self.batches = []
        given = self.servers | {"startingOffsets": "earliest"} | options
        rows = self.spark.readStream.format(kind).options(**given).load()
        query = (
            rows.selectExpr("cast(value as string) as value")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.directory))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.progress = query.recentProgress
        return [each for each in self.batches if each]

    def _take(self, batch: Any, number: int) -> None:
        self.batches.append(sorted(row.value for row in batch.collect()))


@pytest.fixture
def stream(spark: SparkSession, broker: LocalBroker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path / "checkpoint")


def test_stream_resumes_and_finds_new_topics(stream: Stream, broker: LocalBroker) -> None:
    broker.create_topic("one")
    produce(broker, "one", ["a", "b"])
    assert stream.run(subscribePattern="one|two") == [["a", "b"]]

    produce(broker, "one", ["c"])
    broker.create_topic("two", 2)
    produce(broker, "two", ["d"], partition=1)
    assert stream.run(subscribePattern="one|two", commitToGroup="shown") == [["c", "d"]]
    assert stream.run(subscribePattern="one|two") == []
    if HAS_READ_LIMITS:
        assert broker.committed("shown") == {("one", 0): 3, ("two", 0): 0, ("two", 1): 1}


def test_batches_respect_offset_limits(stream: Stream, broker: LocalBroker) -> None:
    broker.create_topic("limited")
    produce(broker, "limited", list("abcdefg"))
    if not HAS_READ_LIMITS:
        with pytest.raises(Exception, match=r"need PySpark 4\.2 or newer"):
            stream.run(subscribe="limited", maxOffsetsPerTrigger="3")
        return
    limits = {"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "2", "commitToGroup": "g"}

    batches = stream.run(subscribe="limited", **limits)

    assert batches == [list("abc"), list("def"), list("g")]
    assert [lag(each) for each in stream.progress] == [4, 1, 0]
    assert broker.committed("g") == {("limited", 0): 7}


def test_batch_without_limits_contains_all_records(stream: Stream, broker: LocalBroker) -> None:
    broker.create_topic("all", 2)
    produce(broker, "all", ["a", "b"])
    produce(broker, "all", ["c"], partition=1)
    assert stream.run(subscribe="all") == [["a", "b", "c"]]


def test_unfinished_batch_is_repeated_before_new_records(
    stream: Stream, broker: LocalBroker
) -> None:
    broker.create_topic("unfinished")
    produce(broker, "unfinished", ["a", "b"])
    stream.run(subscribe="unfinished")
    for file in (stream.directory / "commits").glob("*0*"):
        file.unlink()
    produce(broker, "unfinished", ["c"])

    assert stream.run(subscribe="unfinished") == [["a", "b"], ["c"]]


def test_checkpoint_is_shared_with_connector(stream: Stream, broker: LocalBroker) -> None:
    broker.create_topic("shared")
    for kind, value in (("kafka", "a"), ("kbroker", "b"), ("kafka", "c")):
        produce(broker, "shared", [value])
        assert stream.run(kind, subscribe="shared") == [[value]]


@pytest.mark.parametrize("kind", ["kafka", "kbroker"])
def test_lost_records_fail_stream_or_are_skipped(
    stream: Stream, broker: LocalBroker, kind: str
) -> None:
    broker.create_topic("lost")
    produce(broker, "lost", ["a"])
    stream.run(kind, subscribe="lost")
    produce(broker, "lost", ["b", "c", "d"])
    delete_before(broker, "lost", 2)

    with pytest.raises(Exception, match="Some data may have been lost"):
        stream.run(kind, subscribe="lost")
    assert stream.run(kind, subscribe="lost", failOnDataLoss="false") == [["c", "d"]]


@pytest.mark.parametrize("kind", ["kafka", "kbroker"])
def test_recreated_shorter_topic_fails_query(
    stream: Stream, broker: LocalBroker, kind: str
) -> None:
    broker.create_topic("again")
    produce(broker, "again", ["a", "b", "c"])
    stream.run(kind, subscribe="again")
    broker.delete_topic("again")
    with pytest.raises(Exception, match="does not host this topic-partition"):
        stream.run(kind, subscribe="again")
    broker.create_topic("again")
    produce(broker, "again", ["d"])

    with pytest.raises(Exception, match="again-0 offset was changed from 3 to 1"):
        stream.run(kind, subscribe="again")
    assert stream.run(kind, subscribe="again", failOnDataLoss="false") == []
    produce(broker, "again", ["e"])
    assert stream.run(kind, subscribe="again", failOnDataLoss="false") == [["e"]]


def test_deleted_topics_and_late_partitions_are_data_loss(
    broker: LocalBroker,
) -> None:
    broker.create_topic("late")
    produce(broker, "late", ["a", "b"])
    delete_before(broker, "late", 1)
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribePattern": "late"}
    end = {"late": {"0": 2}}

    strict = stream_reader(SourceOptions.parse(given))
    with pytest.raises(Exception, match="Added partition late-0 starts from 1 instead of 0"):
        strict.partitions({}, end)
    with pytest.raises(Exception, match="gone-0 no longer exist"):
        strict.partitions(end | {"gone": {"0": 1}}, {"late": {"0": 3}})

    lenient = stream_reader(SourceOptions.parse(given | {"failOnDataLoss": "false"}))
    (task,) = lenient.partitions({"gone": {"0": 1}}, end)
    assert (task.range.start, task.range.end) == (1, 2)


def test_repeated_batch_without_newer_offsets_logs_warning(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("repeated")
    produce(broker, "repeated", ["a"])
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "repeated"}
    offsets = {"repeated": {"0": 0}}, {"repeated": {"0": 1}}

    checked = StreamReader(SourceOptions.parse(given))
    assert checked.latestOffset() == offsets[1]
    assert len(checked.partitions(*offsets)) == 1
    checked.stop()
    assert caplog.text == ""

    ended = StreamReader(SourceOptions.parse(given))
    assert len(ended.partitions(*offsets)) == 1
    ended.stop()
    assert "without checking for newer records" in caplog.text


def test_minimum_offsets_delay_batch_until_limit(broker: LocalBroker) -> None:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "few",
        "minOffsetsPerTrigger": "3",
    }
    if not HAS_READ_LIMITS:
        with pytest.raises(OptionError, match=r"need PySpark 4\.2 or newer"):
            stream_reader(SourceOptions.parse(given))
        return
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    broker.create_topic("few")
    patient = stream_reader(SourceOptions.parse(given))
    hasty = stream_reader(SourceOptions.parse(given | {"maxTriggerDelay": "0ms"}))
    limit = patient.getDefaultReadLimit()
    start, one, three = ({"few": {"0": number}} for number in (0, 1, 3))
    assert patient.latestOffset(start, limit) == start, "the first batch does not wait"
    produce(broker, "few", ["a"])
    assert patient.latestOffset(start, limit) == start
    assert hasty.latestOffset(start, limit) == one
    assert patient.latestOffset(start, ReadAllAvailable()) == one
    produce(broker, "few", ["b", "c"])
    assert patient.latestOffset(start, limit) == three
    patient.prepareForTriggerAvailableNow()
    produce(broker, "few", ["d"])
    assert patient.latestOffset(three, limit) == three


def test_end_of_run_from_lagging_broker_is_looked_up_again(broker: LocalBroker) -> None:
    """Otherwise the query would go back to records that it has read, or report them as lost."""
    if not HAS_READ_LIMITS:
        return  # without limits, the source does not fix the end of a run
    broker.create_topic("lagging")
    produce(broker, "lagging", ["a", "b", "c"])
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "lagging"}
    reader = stream_reader(SourceOptions.parse(given))

    @broker.on("ListOffsets", topic="lagging", at="after")
    def lag_behind(response: ListOffsetsResponse, request: Any) -> ListOffsetsResponse:
        if not hits:
            hits.append(1)
            response.topics[0].partitions[0].offset = 1
        return response

    hits: list[int] = []
    reader.prepareForTriggerAvailableNow()
    assert hits
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({"lagging": {"0": 2}}, limit) == {"lagging": {"0": 3}}
