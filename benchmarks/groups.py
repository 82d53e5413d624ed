"""Benchmark of large groups, and of many groups.

    python -m benchmarks.groups --members 1000 --groups 2000 --rounds 5

One consumer group (KIP-848) with a partition per member, on kbroker and on Apache Kafka 4.4. Both run
at the same time and are measured in turns. The members are simulated: they send heartbeats over a few
connections as fast as the broker responds, so that the load is the same for both. In each round:

* All members join and send heartbeats until each has its partition (`join`).
* They send heartbeats that change nothing (`heartbeat`).
* One member leaves, another joins, and heartbeats continue until the group is stable (`rebalance`).
* `--groups` groups of one member are created (`groups`), and send heartbeats (`groups' heartbeat`).

The results are medians of the rounds after `--warm-up`, in which a JVM compiles. On a machine with
other load, wall time is not meaningful, because kbroker has one thread and Kafka many. So the output
also has the number of heartbeats and their CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .brokers import BenchmarkFailed, Broker, Kafka, Kbroker
from .classic import SESSION_TIMEOUT_MS, wait_for_coordinator
from .lines import SETTLE_SECONDS, Line

CONNECTIONS = 4
OFFSETS_PARTITIONS = "1"
STEADY_SWEEPS = 5
HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
TOPIC = "shared"
TOPIC_OF_ONE = "alone"  # has one partition


@dataclass
class Member:
    """A member of a consumer group (KIP-848).

    Attributes:
        assigned: Assigned partitions by topic ID.
        is_unacknowledged: True if the member has not acknowledged the assignment yet.
    """

    id: str
    group: str
    epoch: int = 0
    assigned: dict[UUID, list[int]] = field(default_factory=dict)
    is_unacknowledged: bool = False


@dataclass
class Cost:
    """Wall time in seconds, CPU time of the broker in seconds, and number of requests of a step."""

    seconds: float
    cpu: float
    requests: int


@contextmanager
def measured(broker: Broker, requests: list[int], into: list[Cost]) -> Iterator[None]:
    """Measure the cost of a block.

    Args:
        broker: The broker whose CPU time counts.
        requests: List with one counter of requests, which the block increments.
        into: Receives the cost.
    """
    cpu, began, before = broker.cpu_seconds(), time.perf_counter(), requests[0]
    yield
    seconds = time.perf_counter() - began
    into.append(Cost(seconds, broker.cpu_seconds() - cpu, requests[0] - before))


class ConsumerGroup:
    """Members of one consumer group (KIP-848). With `alone`, each member has its own group."""

    def __init__(
        self, lines: Sequence[Line], name: str, count: int, *, alone: bool = False
    ) -> None:
        self._lines = lines
        self._name = name
        self._count = count
        self._alone = alone
        self._created = 0
        self.sent = [0]
        self.members = [self._new_member() for _ in range(count)]

    def _new_member(self) -> Member:
        self._created += 1
        group = f"{self._name}-{self._created}" if self._alone else self._name
        return Member(f"member-{self._created:05}", group)

    def sweep(self) -> None:
        """Send one heartbeat of each member."""
        parts = [self.members[number :: len(self._lines)] for number in range(len(self._lines))]
        for line, members in zip(self._lines, parts, strict=True):
            line.send((HEARTBEAT, 1, self._heartbeat(member)) for member in members)
        for line, members in zip(self._lines, parts, strict=True):
            for member in members:
                self._apply_response(member, line.answer(HEARTBEAT, 1))
        self.sent[0] += len(self.members)

    def _heartbeat(self, member: Member) -> Any:
        cls: Any = messages.request_class(HEARTBEAT)
        message = cls(group_id=member.group, member_id=member.id, member_epoch=member.epoch)
        if member.epoch == 0:
            message.rebalance_timeout_ms = SESSION_TIMEOUT_MS
            message.subscribed_topic_names = [TOPIC_OF_ONE if self._alone else TOPIC]
            message.topic_partitions = []
        elif member.is_unacknowledged:
            message.topic_partitions = [
                cls.Topic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in member.assigned.items()
            ]
            member.is_unacknowledged = False
        return message

    def _apply_response(self, member: Member, answer: Any) -> None:
        """Store the epoch and assignment of a heartbeat response in the member."""
        if answer.error_code:
            raise BenchmarkFailed(f"a heartbeat failed: {ErrorCode(answer.error_code).name}")
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            member.assigned = {row.topic_id: row.partitions for row in rows}
            member.is_unacknowledged = True

    def settle(self) -> None:
        """Send heartbeats until each member has exactly one partition of its own."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.sweep()
            held = [
                [index for part in each.assigned.values() for index in part]
                for each in self.members
            ]
            is_even = all(len(part) == 1 for part in held)
            if is_even and (self._alone or len({part[0] for part in held}) == self._count):
                return
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self._count} members do not reach a stable assignment")

    def replace_one(self) -> None:
        """Remove one member and add another one."""
        self.remove_members(1)
        self.members.append(self._new_member())

    def remove_members(self, count: int) -> None:
        """Make the first `count` members leave their group."""
        for _ in range(count):
            member = self.members.pop(0)
            message = messages.request_class(HEARTBEAT)(
                group_id=member.group, member_id=member.id, member_epoch=-1
            )
            self._lines[0].ask(HEARTBEAT, 1, message)
            self.sent[0] += 1


def prepare(broker: Broker, partitions: int) -> None:
    """Create the topics, including the offsets topic."""
    line = Line(broker)
    key = ApiKey.CREATE_TOPICS
    cls: Any = messages.request_class(key)
    rows = [
        cls.Topic(name=name, num_partitions=count, replication_factor=1)
        for name, count in ((TOPIC, partitions), (TOPIC_OF_ONE, 1))
    ]
    answer = line.ask(key, 5, cls(topics=rows, timeout_ms=60_000))
    for made in answer.topics:
        if made.error_code:
            raise BenchmarkFailed(f"{broker.name}: cannot create topic: {made.error_message}")
    wait_for_coordinator(line)
    time.sleep(1)
    line.close()


def run_round(broker: Broker, number: int, members: int, groups: int) -> dict[str, Cost]:
    """Run all steps once, with new groups."""
    lines = [Line(broker) for _ in range(CONNECTIONS)]
    group = ConsumerGroup(lines, f"group-{number}", members)
    costs: dict[str, list[Cost]] = defaultdict(list)
    with measured(broker, group.sent, costs["join"]):
        group.settle()
    group.sweep()
    with measured(broker, group.sent, costs["heartbeat"]):
        for _ in range(STEADY_SWEEPS):
            group.sweep()
    with measured(broker, group.sent, costs["rebalance"]):
        group.replace_one()
        group.settle()
    group.remove_members(len(group.members))
    many = ConsumerGroup(lines, f"groups-{number}", groups, alone=True)
    with measured(broker, many.sent, costs["groups"]):
        many.settle()
    many.sweep()
    with measured(broker, many.sent, costs["groups' heartbeat"]):
        for _ in range(STEADY_SWEEPS):
            many.sweep()
    many.remove_members(len(many.members))
    for line in lines:
        line.close()
    return {name: found[0] for name, found in costs.items()}


def report(rounds: dict[str, list[dict[str, Cost]]]) -> None:
    """Print the medians of each broker."""
    for what in ("join", "heartbeat", "rebalance", "groups", "groups' heartbeat"):
        parts = []
        for name, found in rounds.items():
            costs = [each[what] for each in found]
            seconds = statistics.median(each.seconds for each in costs)
            cpu = statistics.median(each.cpu for each in costs)
            text = f"{name} {seconds:.2f} s, {cpu:.2f} s of CPU"
            requests = statistics.median(each.requests for each in costs)
            if requests:
                text += (
                    f", {cpu / requests * 1e6:.0f} us of CPU for each of {requests:.0f} heartbeats"
                )
            parts.append(text)
        print(f"figures: {what}: {'; '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.groups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=2000, help="groups of one member each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before the measured ones")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    arguments = parser.parse_args()
    settings = {"offsets.topic.num.partitions": OFFSETS_PARTITIONS}
    rounds: dict[str, list[dict[str, Cost]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        brokers: list[Broker] = []
        for kind in (Kbroker,) if arguments.alone else (Kbroker, Kafka):
            broker: Broker = kind(Path(directory) / kind.__name__, durable=False, settings=settings)
            stack.callback(broker.stop)
            brokers.append(broker)
            prepare(broker, arguments.members)
        for number in range(arguments.warm_up + arguments.rounds):
            for broker in brokers:
                costs = run_round(broker, number, arguments.members, arguments.groups)
                if number >= arguments.warm_up:
                    rounds[broker.name].append(costs)
        report(rounds)


if __name__ == "__main__":
    main()
