"""Group members that join and leave under load, with a report of what they read and committed.

Usage: python churn.py ADDRESS TOPIC GROUP MEMBERS SECONDS ROUNDS JAVA...

Runs in the environment of confluent-kafka. Every fourth member uses the Java client, in the process
started by JAVA... (java/ChurnMembers.java). If ROUNDS is 0, all members use the consumer protocol
(KIP-848), and each second one member leaves and another one joins, for SECONDS. Otherwise the
members are replaced one by one by members of the other protocol, back and forth, ROUNDS times.
Members commit periodically and before partitions are revoked. The program prints one line of JSON
at the end, see `deliveries`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from deliveries import Deliveries

WAIT_SECONDS = 120.0
COMMIT_SECONDS = 0.5
# Pause between two records of the load, in seconds.
PAUSE_SECONDS = 0.01
# Pause after a conversion, in seconds. It exceeds the heartbeat interval, so that all members
# notice the conversion before the next one begins.
SETTLE_SECONDS = 1.5
# Every fourth member uses the Java client.
JAVA_EVERY = 4
CONSUMER, CLASSIC = "consumer", "classic"


class Leaver(Protocol):
    """A member of any library."""

    def close(self) -> None: ...


class Member:
    """A consumer in its own thread."""

    def __init__(
        self, name: str, address: str, topic: str, group: str, protocol: str, seen: Deliveries
    ) -> None:
        self.name = name
        self.protocol = protocol
        self._seen = seen
        self._positions: dict[int, int] = {}
        self._topic = topic
        self._ends = threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 50,
        }
        if protocol == CLASSIC:
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
        self._consumer = Consumer(settings, logger=_Quiet())
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ends.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and not message.error():
                self._seen.deliver(self.name, message.partition(), message.offset())
                self._positions[message.partition()] = message.offset() + 1
            if time.monotonic() - last > COMMIT_SECONDS:
                last = time.monotonic()
                self._commit(self._positions)
        self._consumer.close()

    def _commit(self, positions: dict[int, int], *, is_last: bool = False) -> None:
        offsets = [TopicPartition(self._topic, part, at) for part, at in positions.items()]
        if not offsets:
            return
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if is_last:
                why = f"{self.protocol}, {error.args[0].name()}"
                self._seen.lose(self.name, why, positions)
            return  # rebalance, or the broker is down: the next commit includes these offsets
        for row in done or ():
            if not row.error:
                self._seen.commit(self.name, row.partition, row.offset)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for row in partitions:
            self._positions.pop(row.partition, None)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = {row.partition: self._positions.pop(row.partition, None) for row in partitions}
        self._commit({part: at for part, at in revoked.items() if at is not None}, is_last=True)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lost = [row.partition for row in partitions]
        self._seen.lose(self.name, f"{self.protocol}, fenced", lost)
        for row in partitions:
            self._positions.pop(row.partition, None)


class _Quiet:
    """Logger that discards messages, because broken connections are expected."""

    def log(self, *arguments: Any) -> None:
        pass


class JavaMembers:
    """Members that use the Java client, all in one process."""

    def __init__(self, command: Iterable[str], seen: Deliveries) -> None:
        self._seen = seen
        self._left: dict[str, threading.Event] = {}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read_lines, daemon=True).start()

    def join(self, name: str, protocol: str) -> JavaMember:
        self._left[name] = threading.Event()
        self._write_line(f"join {name} {protocol}")
        return JavaMember(self, name)

    def leave(self, name: str) -> None:
        self._write_line(f"leave {name}")
        if not self._left[name].wait(WAIT_SECONDS):
            raise TimeoutError(f"{name} did not leave within {WAIT_SECONDS} s")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_SECONDS)

    def _write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, what, *rest = line.split()
            if what == "read":
                self._seen.deliver(name, int(rest[0]), int(rest[1]))
            elif what == "commit":
                self._seen.commit(name, int(rest[0]), int(rest[1]))
            elif what == "lose":
                self._seen.lose(name, f"java {rest[0]}, {rest[1]}", map(int, rest[2:]))
            else:
                self._left[name].set()


class JavaMember:
    """A member that uses the Java client."""

    def __init__(self, members: JavaMembers, name: str) -> None:
        self._members = members
        self._name = name

    def close(self) -> None:
        self._members.leave(self._name)


class Load(threading.Thread):
    """Thread that writes records until it is stopped."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(settings, logger=_Quiet())
        self._topic = topic
        self.ends = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            self._producer.produce(self._topic, str(number).encode(), str(number).encode())
            self._producer.poll(0)
            number += 1
            time.sleep(PAUSE_SECONDS)
        self._producer.flush(WAIT_SECONDS)


Join = Callable[[str], Leaver]


def churn(join: Join, members: list[Leaver], seconds: float) -> None:
    """Replace one member per second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        members.append(join(CONSUMER))
        members.pop(0).close()


def convert(join: Join, members: list[Leaver], rounds: int, seen: Deliveries) -> None:
    """Replace the members by members of the other protocol, back and forth."""
    for _ in range(rounds):
        for protocol in (CONSUMER, CLASSIC):
            seen.phase = f"to {protocol}: "
            for position in range(len(members)):
                time.sleep(0.3)
                members[position].close()
                members[position] = join(protocol)
            time.sleep(SETTLE_SECONDS)
    seen.phase = "afterwards: "


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition. After the timeout, continue so that the report is printed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def ends_of(address: str, topic: str) -> int:
    """Return the number of records in a topic."""
    probe = Consumer({"bootstrap.servers": address, "group.id": "probe"})
    parts = probe.list_topics(topic, 30).topics[topic].partitions
    ends = [probe.get_watermark_offsets(TopicPartition(topic, each), 30)[1] for each in parts]
    probe.close()
    return sum(ends)


def main() -> None:
    address, topic, group = sys.argv[1:4]
    count, seconds, rounds = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    seen = Deliveries()
    java = JavaMembers(sys.argv[7:], seen)
    numbers = itertools.count()
    load = Load(address, topic)
    load.start()

    def join(protocol: str) -> Leaver:
        number = next(numbers)
        if number % JAVA_EVERY == 0:
            return java.join(f"java-{number}", protocol)
        return Member(f"member-{number}", address, topic, group, protocol, seen)

    members = [join(CLASSIC if rounds else CONSUMER) for _ in range(count)]
    wait_until(lambda: seen.java_read > 0)  # the JVM may take seconds to start
    print("begun", flush=True)
    if rounds:
        convert(join, members, rounds, seen)
    else:
        churn(join, members, seconds)
    load.ends.set()
    load.join()
    written = ends_of(address, topic)
    wait_until(lambda: len(seen.read) >= written)
    for member in members:
        member.close()
    java.close()
    print(json.dumps(seen.report() | {"written": written}))


if __name__ == "__main__":
    main()
