"""An archiver that runs continuously: it waits for unavailable brokers and merges its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.pipelines.lake import reading
from kbroker.pipelines.lake.archiver import Conf
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.running import Runner
from kbroker.spark.source.stream import HAS_READ_LIMITS
from kbroker.testing import LocalBroker

from .lakes import archive, conf_of, payloads, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 180
SOURCES = ["kafka", "kbroker"] if HAS_READ_LIMITS else ["kafka"]

Events = list[tuple[str, dict[str, Any]]]


@contextmanager
def archiving(spark: SparkSession, conf: Conf) -> Iterator[Events]:
    """Run an archiver until the block ends, and yield the list of its events."""
    reported: Events = []

    def report(name: str, more: dict[str, Any]) -> None:
        reported.append((name, more))

    runner = Runner(lambda: (spark, conf.source), conf, ["t"], report)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            runner.run()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield reported
    finally:
        runner.stop()
        thread.join(WAIT_SECONDS)
        if failed:
            raise failed[0]


def wait_until(is_so: Callable[[], bool], reported: Events) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, reported
        time.sleep(0.1)


@pytest.mark.parametrize("source", SOURCES)
def test_runner_waits_for_unavailable_broker(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, source: str
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"n": number} for number in range(5)])
    conf = Conf(tmp_path, "t", broker.bootstrap_servers, every_seconds=0, source=source)
    with archiving(spark, conf) as reported:
        wait_until(lambda: len(payloads(tmp_path, "t")) == 5, reported)
        broker.stop()
        wait_until(lambda: "waiting" in dict(reported), reported)
        broker.start()
        produce(broker, "t", [{"n": number} for number in range(5, 9)])
        wait_until(lambda: len(payloads(tmp_path, "t")) == 9, reported)
    assert "back" in dict(reported)
    assert payloads(tmp_path, "t") == [{"n": number} for number in range(9)]
    assert check(tmp_path, "t").problems == []


def test_archiver_merges_small_files(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"n": number} for number in range(10)])
    archive(spark, conf_of(broker, tmp_path, "t", batch_rows=1, merge_every=8))
    files = reading.files(tmp_path, "t")
    assert [(file.first, file.last) for file in files] == [(0, 7), (8, 8), (9, 9)]
    assert payloads(tmp_path, "t") == [{"n": number} for number in range(10)]
    assert check(tmp_path, "t").problems == []


def test_lake_continues_with_other_source(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    sources = [*SOURCES, "kafka"]
    for number, source in enumerate(sources):
        produce(broker, "t", [{"n": number}])
        archive(spark, conf_of(broker, tmp_path, "t", source=source))
    assert payloads(tmp_path, "t") == [{"n": number} for number in range(len(sources))]
    assert check(tmp_path, "t").problems == []
