"""Rows measured with Apache Kafka's performance tools."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .brokers import BenchmarkFailed, kafka_jars, output
from .python_client import PythonClient, timed
from .rows import BULK_BYTES, SIZES, Sample

PARTITIONS = 4
# Factor for the number of records compared with the Python client, to warm up the tool's JVM.
SIZE_FACTOR = 2


class JavaClient:
    """Client that runs rows against the broker of `client`, which creates the topics."""

    def __init__(self, client: PythonClient) -> None:
        self._broker = client.broker
        self._scale = client.scale
        self._create_topic = client.create_topic

    def bulk(self, name: str) -> Iterator[Sample]:
        """Run ProducerPerformance (acks=all, batches of 16 kB), then ConsumerPerformance."""
        size = SIZES[name]
        count = int(self._scale * SIZE_FACTOR * BULK_BYTES[name] / size)
        topic = self._create_topic(f"java-{size}", PARTITIONS)
        with timed(self._broker) as watch:
            rate = self._produce(topic, size, count)
        gigabytes = count * size / 1e9
        yield Sample(f"java produce {name}", rate * size / 1e6, watch.cpu_seconds / gigabytes)
        with timed(self._broker) as watch:
            rate = self._consume(topic, count)
        yield Sample(f"java consume {name}", rate * size / 1e6, watch.cpu_seconds / gigabytes)

    def _produce(self, topic: str, size: int, count: int) -> float:
        """Run ProducerPerformance and return records per second."""
        out = self._run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
            *("--throughput", "-1", "--bootstrap-server", self._broker.address),
            *("--command-property", "acks=all"),
        )
        totals = re.findall(r"(\d+) records sent, ([\d.]+) records/sec .*50th", out)
        if not totals or int(totals[-1][0]) != count:
            raise BenchmarkFailed(f"{self._broker.name}, ProducerPerformance:\n{out}")
        return float(totals[-1][1])

    def _consume(self, topic: str, count: int) -> float:
        """Run ConsumerPerformance and return records per second, without the join time."""
        out = self._run(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", topic, "--bootstrap-server", self._broker.address),
            *("--num-records", str(count), "--group", f"{topic}-readers", "--hide-header"),
        )
        fields = out.strip().splitlines()[-1].split(",") if out.strip() else []
        if len(fields) != 10 or float(fields[4]) < count:
            raise BenchmarkFailed(f"{self._broker.name}, ConsumerPerformance:\n{out}")
        return float(fields[9])

    def _run(self, tool: str, *arguments: str) -> str:
        command = ["java", "-Xmx512M", "-cp", f"{kafka_jars()}/*", tool, *arguments]
        return output(command, f"{self._broker.name}, {tool}")
