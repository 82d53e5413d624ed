"""Benchmark of two kbroker processes compared with one: `python -m benchmarks.cores --write`.

It shows the gain of a second core. The load generator shares these two cores, so it must be cheap:
it sends pre-encoded frames in batches of a hundred or more.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .__main__ import OUR_HEADINGS, comparison_parser, render_section, run, write_section
from .brokers import BenchmarkFailed, Broker, Kbroker
from .clusters import Supervised
from .lines import connect
from .python_client import timed
from .rows import Sample
from .turns import Record, recorded
from .wire_client import WAIT_SECONDS, exchange_all, produce_frame

PROGRAM = "benchmarks.cores"
# Number of frames that are sent before their responses are awaited.
REQUESTS_AT_ONCE = 200
# Connections per partition.
CONNECTIONS = 4
PARTITIONS = 2
SECONDS = 8.0
RECEIVE_BYTES = 1 << 18
TITLE = "## Two processes"
INTRODUCTION = f"""\
Written by `python -m benchmarks.cores`: `kbroker serve --processes 2` compared with one process, on two cores. The requests
produce one record each and are encoded in advance. One client process uses {PARTITIONS * CONNECTIONS} connections, each of which
sends {REQUESTS_AT_ONCE} requests and waits for the responses. CPU time is that of all broker processes, including the supervisor.
"""


class TwoProcesses(Supervised):
    """`kbroker serve --processes 2`."""

    nodes = 2


class OneProcess(Kbroker):
    """`kbroker serve` with one process."""

    name = "one process"


BROKERS: Mapping[str, type[Broker]] = {"two": TwoProcesses, "one": OneProcess}


class BatchingConnection:
    """A connection that sends many requests at once, and only counts the response bytes."""

    def __init__(self, port: int, frame: bytes) -> None:
        self.sent = 0
        self.ends = 0.0  # when to stop sending
        self._frames = frame * REQUESTS_AT_ONCE
        self._size = 0
        self._left = 0
        self.socket = connect(("127.0.0.1", port), WAIT_SECONDS)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._measure_response_size(frame)

    def _measure_response_size(self, frame: bytes) -> None:
        """Measure the size of a response; all later responses have the same size."""
        self.socket.sendall(frame)
        answer = self.socket.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        answer.read(size)
        self._size = 4 + size
        self.sent = 1

    def ask(self) -> bool:
        """Send the next batch; return False if the time is over."""
        if time.monotonic() >= self.ends:
            return False
        self.socket.sendall(self._frames)
        self._left = REQUESTS_AT_ONCE * self._size
        return True

    def receive(self) -> bool:
        """Receive data, and send the next batch after all responses; return False at the end."""
        size = self.socket.recv_into(self._buffer)
        if not size:
            raise BenchmarkFailed("a broker closed a connection")
        self._left -= size
        if self._left:
            return True
        self.sent += REQUESTS_AT_ONCE
        return self.ask()


def pipelined(options: argparse.Namespace, durabilities: Sequence[bool]) -> Iterator[Record]:
    """Yield the request rates of all brokers, measured in turns."""
    for durable in durabilities:
        for repeat in range(options.repeat):
            for name in options.brokers:
                kind = BROKERS[name]
                broker = kind(options.directory / f"{name}-cores", durable=durable)
                try:
                    sample = _measure_rate(broker, SECONDS * options.scale)
                finally:
                    broker.stop()
                yield recorded(sample, kind.name, durable, repeat)


def _measure_rate(broker: Broker, seconds: float) -> Sample:
    topic = "cores"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(WAIT_SECONDS)
    connections = [
        BatchingConnection(
            _leader_port(broker, admin, topic, partition), produce_frame(topic, partition)
        )
        for partition in range(PARTITIONS)
        for _ in range(CONNECTIONS)
    ]
    _send(connections, seconds / 4)  # warm up
    before = sum(each.sent for each in connections)
    with timed(broker) as watch:
        _send(connections, seconds)
    count = sum(each.sent for each in connections) - before
    for each in connections:
        each.socket.close()
    _check_stored(broker, topic, count + before)
    return Sample("cores", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)


def _leader_port(broker: Broker, admin: AdminClient, topic: str, partition: int) -> int:
    """Return the port of a partition's leader."""
    metadata = admin.list_topics(topic, WAIT_SECONDS)
    leader = metadata.topics[topic].partitions[partition].leader
    return int(metadata.brokers[leader].port)


def _send(connections: Sequence[BatchingConnection], seconds: float) -> None:
    """Send on all connections for this number of seconds."""
    for each in connections:
        each.ends = time.monotonic() + seconds
    exchange_all(connections)


def _check_stored(broker: Broker, topic: str, count: int) -> None:
    """Raise BenchmarkFailed unless the broker stored all records.

    The client does not decode the responses, so it would not notice errors.
    """
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "log_level": 2})
    stored = sum(
        consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_SECONDS)[1]
        for partition in range(PARTITIONS)
    )
    consumer.close()
    if stored != count:
        raise BenchmarkFailed(f"{broker.name} has {stored:,} records of {count:,}")


def main() -> None:
    parser = comparison_parser(PROGRAM, __doc__, BROKERS)
    options = parser.parse_args()
    others = pipelined(options, options.durable)
    options.durable = []  # measure no other rows
    report = run(options, BROKERS, None, others)
    text = render_section(report, TITLE, INTRODUCTION, OUR_HEADINGS, [OneProcess.name])
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
