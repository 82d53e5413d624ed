"""One Spark session for all tests, and an in-memory broker (`kbroker`) for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kbroker.spark import session
from kbroker.testing import LocalBroker
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from my_pipeline import topics
from my_pipeline.conf import Conf
from my_pipeline.pipeline import build
from my_pipeline.watch import Watch

Run = Callable[[], None]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    running = session("tests", quick=True, settings={"spark.sql.shuffle.partitions": "1"})
    yield running
    running.stop()


@pytest.fixture
def conf(kbroker: LocalBroker, tmp_path: Path) -> Conf:
    checkpoint = str(tmp_path / "checkpoint")
    return Conf(bootstrap=kbroker.bootstrap_servers, checkpoint=checkpoint, trigger="0 seconds")


@pytest.fixture
def watch(spark: SparkSession) -> Iterator[Watch]:
    """Return a listener for the queries of the test."""
    listener = Watch()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


@pytest.fixture
def run(spark: SparkSession, conf: Conf) -> Run:
    """Return a function that processes all available records; the second call is a restart."""

    def work() -> None:
        query = build(spark, conf)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return work


@pytest.fixture
def crash_after_writing(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that writes a batch and crashes before Spark commits it."""
    write = topics.write

    def write_and_crash(rows: DataFrame, conf: Conf) -> None:
        write(rows, conf)
        raise RuntimeError("crashed after writing")

    def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(topics, "write", write_and_crash)
            with pytest.raises(StreamingQueryException, match="crashed after writing"):
                run()

    return work


@pytest.fixture
def latest(kbroker: LocalBroker) -> Callable[[str], dict[str, str]]:
    """Return a function that reads a compacted topic: the last value of each key, as text."""

    def read(topic: str) -> dict[str, str]:
        return {(each.key or b"").decode(): each.text for each in kbroker.records(topic)}

    return read
