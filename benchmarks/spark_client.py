"""Row measured with Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .brokers import ROOT, BenchmarkFailed, RowUnsupported, output
from .python_client import PythonClient, timed
from .rows import SPARK_RECORDS, Sample

RECORD_BYTES = 100
ENVIRONMENT = ROOT / ".work/spark-4.2"


def spark_python() -> Path:
    """Return the Python of the environment with Spark.

    Raises:
        BenchmarkFailed: The environment does not exist.
    """
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        raise BenchmarkFailed(f"no Spark in {ENVIRONMENT}; run 'make spark-environment'")
    return python


class SparkClient:
    """Client that runs Spark against the broker of `client`, which writes the records."""

    def __init__(self, client: PythonClient) -> None:
        self._client = client

    def read(self) -> Iterator[Sample]:
        """Run a batch query over all records; the second one of the session counts."""
        client = self._client
        count = int(client.scale * SPARK_RECORDS)
        topic = client.fill("spark", count * RECORD_BYTES, RECORD_BYTES)
        with timed(client.broker) as watch:
            seconds = self._read(topic, count)
        gigabytes = 2 * count * RECORD_BYTES / 1e9  # both reads
        yield Sample("spark", count / seconds / 1e3, watch.cpu_seconds / gigabytes)

    def _read(self, topic: str, count: int) -> float:
        address = self._client.broker.address
        command = [str(spark_python()), "-m", "benchmarks.spark_reader", address, topic]
        printed = output(
            [*command, str(count)],
            f"{self._client.broker.name}, Spark",
            environment={"KBROKER_SPARK_JARS": f"{ENVIRONMENT}/jars"},
            failure=RowUnsupported,
        )
        return float(printed.splitlines()[-1])
