"""Two processes of kbroker beside one: `python -m benchmarks.cores --write`.

What a second core gives. The load is frames that were encoded beforehand, sent by the hundred: it costs
next to nothing, and has to, because it takes the same two cores.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .__main__ import OUR_HEADINGS, arguments, document, run, write_section
from .brokers import BenchmarkFailed, Broker, Kbroker, cpu_seconds_of
from .clusters import Supervised
from .lines import connect
from .python_client import timed
from .rows import Sample
from .turns import Record, recorded
from .wire_client import WAIT_SECONDS, produce_frame, until_answered

PROGRAM = "benchmarks.cores"
AT_ONCE = 200
"""Frames that are sent together; their answers are waited for."""
CONNECTIONS = 4
"""How many there are for each partition."""
PARTITIONS = 2
SECONDS = 8.0
RECEIVE_BYTES = 1 << 18
TITLE = "## Two processes"
INTRODUCTION = f"""\
Made by `python -m benchmarks.cores`: `kbroker serve --processes 2` beside one process, on two cores. Requests to produce one
record each were encoded beforehand; {PARTITIONS * CONNECTIONS} connections send {AT_ONCE} of them together and wait for the
answers, from one process beside. Processor time is that of all processes of the broker, the supervisor's too.
"""


class Two(Supervised):
    """`kbroker serve --processes 2`."""

    nodes = 2

    def cpu_seconds(self) -> float:
        nodes = range(1, self.nodes + 1)
        return super().cpu_seconds() + sum(cpu_seconds_of(self.pid_of(node)) for node in nodes)


class One(Kbroker):
    """As what stands beside it."""

    name = "one process"


BROKERS: Mapping[str, type[Broker]] = {"two": Two, "one": One}


class Bundle:
    """A connection that sends many requests together, whose answers are only counted."""

    def __init__(self, port: int, frame: bytes) -> None:
        self.sent = 0
        self.ends = 0.0
        """Until when it asks."""
        self._frames = frame * AT_ONCE
        self._size = 0
        self._left = 0
        self.socket = connect(("127.0.0.1", port), WAIT_SECONDS)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._measure(frame)

    def _measure(self, frame: bytes) -> None:
        """How long an answer is; all that follow are as long."""
        self.socket.sendall(frame)
        answer = self.socket.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        answer.read(size)
        self._size = 4 + size
        self.sent = 1

    def ask(self) -> bool:
        """Send the next ones; False when the time is over."""
        if time.monotonic() >= self.ends:
            return False
        self.socket.sendall(self._frames)
        self._left = AT_ONCE * self._size
        return True

    def receive(self) -> bool:
        """Take what has come, and ask again when all are answered; False at the end."""
        size = self.socket.recv_into(self._buffer)
        if not size:
            raise BenchmarkFailed("a broker closed a connection")
        self._left -= size
        if self._left:
            return True
        self.sent += AT_ONCE
        return self.ask()


def pipelined(options: argparse.Namespace, durabilities: Sequence[bool]) -> Iterator[Record]:
    """How many requests are answered, in turns."""
    for durable in durabilities:
        for repeat in range(options.repeat):
            for name in options.brokers:
                kind = BROKERS[name]
                broker = kind(options.directory / f"{name}-cores", durable=durable)
                try:
                    sample = _measure(broker, SECONDS * options.scale)
                finally:
                    broker.stop()
                yield recorded(sample, kind.name, durable, repeat)


def _measure(broker: Broker, seconds: float) -> Sample:
    topic = "cores"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(WAIT_SECONDS)
    bundles = [
        Bundle(_port(broker, admin, topic, partition), produce_frame(topic, partition))
        for partition in range(PARTITIONS)
        for _ in range(CONNECTIONS)
    ]
    _send(bundles, seconds / 4)  # warm
    before = sum(each.sent for each in bundles)
    with timed(broker) as watch:
        _send(bundles, seconds)
    count = sum(each.sent for each in bundles) - before
    for each in bundles:
        each.socket.close()
    _check(broker, topic, count + before)
    return Sample("cores", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)


def _port(broker: Broker, admin: AdminClient, topic: str, partition: int) -> int:
    """Where the leader of a partition listens."""
    metadata = admin.list_topics(topic, WAIT_SECONDS)
    leader = metadata.topics[topic].partitions[partition].leader
    return int(metadata.brokers[leader].port)


def _send(bundles: Sequence[Bundle], seconds: float) -> None:
    """All of them again and again, for so long."""
    for each in bundles:
        each.ends = time.monotonic() + seconds
    until_answered(bundles)


def _check(broker: Broker, topic: str, count: int) -> None:
    """Raise BenchmarkFailed unless the broker has all records: answers were only counted."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "log_level": 2})
    there = sum(
        consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_SECONDS)[1]
        for partition in range(PARTITIONS)
    )
    consumer.close()
    if there != count:
        raise BenchmarkFailed(f"{broker.name} has {there:,} records of {count:,}")


def main() -> None:
    parser = arguments(PROGRAM, __doc__, BROKERS)
    options = parser.parse_args()
    others = pipelined(options, options.durable)
    options.durable = []  # there is no other row
    report = run(options, BROKERS, None, others)
    text = document(report, TITLE, INTRODUCTION, OUR_HEADINGS, [One.name])
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
