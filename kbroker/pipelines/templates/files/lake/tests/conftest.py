"""One Spark session for all tests, and an in-memory broker (`kbroker`) for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kbroker.spark import session
from kbroker.testing import LocalBroker
from pyspark.sql import SparkSession

from my_pipeline.conf import Conf
from my_pipeline.pipeline import build

Run = Callable[[], None]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    running = session("tests", quick=True, settings={"spark.sql.shuffle.partitions": "1"})
    yield running
    running.stop()


@pytest.fixture
def conf(kbroker: LocalBroker, tmp_path: Path) -> Conf:
    lake = str(tmp_path / "lake")
    return Conf(bootstrap=kbroker.bootstrap_servers, lake=lake, every_seconds=0)


@pytest.fixture
def run(spark: SparkSession, conf: Conf) -> Run:
    """Return a function that processes all available records; the second call is a restart."""

    def work() -> None:
        build(spark, conf).awaitTermination()

    return work


@pytest.fixture
def crash_after_writing(run: Run, conf: Conf) -> Run:
    """Return a function that runs and leaves the state of a crash before Spark's commit."""

    def work() -> None:
        run()
        commits = Path(conf.lake, "_kbroker", conf.orders, "checkpoint", "commits")
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=batch_of)
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    return work


def batch_of(commit: Path) -> int:
    return int(commit.name)
