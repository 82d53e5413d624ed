"""Members of one group that come and go under load, and what each of them read and committed.

Usage: python churn.py ADDRESS TOPIC GROUP MEMBERS SECONDS ROUNDS JAVA...

Runs in the environment of confluent-kafka; every fourth member is one of Java's client, in the process that
JAVA... starts (java/ChurnMembers.java). With ROUNDS = 0 all members speak the protocol of KIP-848, and one
of them leaves each second while another one joins, for SECONDS. Otherwise they are replaced one by one by
members of the other protocol, there and back, ROUNDS times. Members commit what they give back before they do,
and now and then. Prints one line of JSON at the end; see `deliveries`.
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
PAUSE_SECONDS = 0.01
"""Between two records of the load."""
SETTLE_SECONDS = 1.5
"""Longer than members are silent: what the way there has done to them is seen before the way back begins."""
JAVA_EVERY = 4
"""Each fourth member is one of Java's client."""
NEW, OLD = "consumer", "classic"


class Leaver(Protocol):
    """A member, of whichever library."""

    def close(self) -> None: ...


class Member:
    """One consumer in a thread of its own."""

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
        if protocol == OLD:
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
        self._consumer = Consumer(settings, logger=_Quiet())
        self._consumer.subscribe(
            [topic], on_assign=self._take, on_revoke=self._give_back, on_lost=self._lose
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
            return  # in a rebalance, or the broker is away: the next commit says more
        for row in done or ():
            if not row.error:
                self._seen.commit(self.name, row.partition, row.offset)

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for row in partitions:
            self._positions.pop(row.partition, None)

    def _give_back(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {row.partition: self._positions.pop(row.partition, None) for row in partitions}
        self._commit({part: at for part, at in gone.items() if at is not None}, is_last=True)

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = [row.partition for row in partitions]
        self._seen.lose(self.name, f"{self.protocol}, fenced", gone)
        for row in partitions:
            self._positions.pop(row.partition, None)


class _Quiet:
    """Broken connections are expected."""

    def log(self, *arguments: Any) -> None:
        pass


class JavaMembers:
    """The members of Java's client: all of them in one process."""

    def __init__(self, command: Iterable[str], seen: Deliveries) -> None:
        self._seen = seen
        self._left: dict[str, threading.Event] = {}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def join(self, name: str, protocol: str) -> JavaMember:
        self._left[name] = threading.Event()
        self._say(f"join {name} {protocol}")
        return JavaMember(self, name)

    def leave(self, name: str) -> None:
        self._say(f"leave {name}")
        if not self._left[name].wait(WAIT_SECONDS):
            raise TimeoutError(f"{name} does not leave")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_SECONDS)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
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
    """One of them."""

    def __init__(self, members: JavaMembers, name: str) -> None:
        self._members = members
        self._name = name

    def close(self) -> None:
        self._members.leave(self._name)


class Load(threading.Thread):
    """Writes records until it is stopped."""

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
    """Members come and go, one a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        members.append(join(NEW))
        members.pop(0).close()


def convert(join: Join, members: list[Leaver], rounds: int, seen: Deliveries) -> None:
    """Members are replaced by those of the other protocol, there and back."""
    for _ in range(rounds):
        for protocol in (NEW, OLD):
            seen.phase = f"to {protocol}: "
            for position in range(len(members)):
                time.sleep(0.3)
                members[position].close()
                members[position] = join(protocol)
            time.sleep(SETTLE_SECONDS)
    seen.phase = "afterwards: "


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for it; what it is not in the end is for the report to say."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def ends_of(address: str, topic: str) -> int:
    """How many records there are."""
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

    members = [join(OLD if rounds else NEW) for _ in range(count)]
    wait_until(lambda: seen.java_read > 0)  # a JVM may take seconds to start
    print("begun", flush=True)
    if rounds:
        convert(join, members, rounds, seen)
    else:
        churn(join, members, seconds)
    load.ends.set()
    load.join()
    wanted = ends_of(address, topic)
    wait_until(lambda: len(seen.read) >= wanted)
    for member in members:
        member.close()
    java.close()
    print(json.dumps(seen.report() | {"written": wanted}))


if __name__ == "__main__":
    main()
