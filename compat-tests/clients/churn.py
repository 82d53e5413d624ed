"""Members of one group that come and go under load, and what each of them read and committed.

Usage: python churn.py ADDRESS TOPIC GROUP MEMBERS SECONDS ROUNDS

Runs in the environment of confluent-kafka. With ROUNDS = 0 all members speak the protocol of KIP-848, and one
of them leaves each second while another one joins, for SECONDS. Otherwise they are replaced one by one by
members of the other protocol, there and back, ROUNDS times. Members commit what they give back before they do,
and now and then. Prints one line of JSON at the end; see `deliveries`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from deliveries import Deliveries

WAIT_SECONDS = 120.0
COMMIT_SECONDS = 0.5
PAUSE_SECONDS = 0.01
"""Between two records of the load."""
NEW, OLD = "consumer", "classic"


class Member:
    """One consumer in a thread of its own."""

    def __init__(
        self, address: str, topic: str, group: str, protocol: str, seen: Deliveries
    ) -> None:
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
                self._seen.deliver(message.partition(), message.offset())
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
                self._seen.lose(f"{self.protocol}: {error.args[0].name()}")
            return  # in a rebalance, or the broker is away: the next commit says more
        for row in done or ():
            if not row.error:
                self._seen.commit(row.partition, row.offset)

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for row in partitions:
            self._positions.pop(row.partition, None)

    def _give_back(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {row.partition: self._positions.pop(row.partition, None) for row in partitions}
        self._commit({part: at for part, at in gone.items() if at is not None}, is_last=True)

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._seen.lose(f"{self.protocol}: fenced")
        for row in partitions:
            self._positions.pop(row.partition, None)


class _Quiet:
    """Broken connections are expected."""

    def log(self, *arguments: Any) -> None:
        pass


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


def churn(join: Any, count: int, seconds: float) -> list[Member]:
    """Members come and go, one a second."""
    members = [join(NEW) for _ in range(count)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        members.append(join(NEW))
        members.pop(0).close()
    return members


def convert(join: Any, count: int, rounds: int) -> list[Member]:
    """Members are replaced by those of the other protocol, there and back."""
    members = [join(OLD) for _ in range(count)]
    for _ in range(rounds):
        for protocol in (NEW, OLD):
            for position in range(count):
                time.sleep(0.3)
                members[position].close()
                members[position] = join(protocol)
    return members


def main() -> None:
    address, topic, group = sys.argv[1:4]
    count, seconds, rounds = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    seen = Deliveries()
    load = Load(address, topic)
    load.start()

    def join(protocol: str) -> Member:
        return Member(address, topic, group, protocol, seen)

    members = convert(join, count, rounds) if rounds else churn(join, count, seconds)
    load.ends.set()
    load.join()
    probe = Consumer({"bootstrap.servers": address, "group.id": "probe"})
    parts = probe.list_topics(topic, 30).topics[topic].partitions
    ends = {each: probe.get_watermark_offsets(TopicPartition(topic, each), 30)[1] for each in parts}
    probe.close()
    wanted = sum(ends.values())
    deadline = time.monotonic() + WAIT_SECONDS
    while len(seen.read) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    for member in members:
        member.close()
    print(json.dumps(seen.report() | {"written": wanted}))


if __name__ == "__main__":
    main()
