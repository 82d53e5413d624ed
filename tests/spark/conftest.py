"""One Spark session for all tests of this directory, and an in-memory broker for each test.

These tests need an environment with PySpark: `make spark-test`. Without PySpark they are not
collected.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark import session
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark 4.0 leaves the sockets of foreachBatch and of listeners to the garbage collector.
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(UNCLOSED)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as users create it."""
    running = session("tests", quick=True, settings={"spark.driver.memory": "1g"})
    yield running
    running.stop()


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running
