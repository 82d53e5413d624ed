"""Crashes of one, two and all of three nodes under load: acknowledged records are on all of them.

To other nodes, a crash looks like a machine failure: connections are reset and no code runs.
In some rounds the whole process is killed, or two nodes lose their directories as well. A round
without requests in flight or without an election does not count. In rounds that crash a follower,
the follower must leave the ISR instead.
"""

from __future__ import annotations

import gc
import itertools
import logging
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from kbroker.protocol.records import iter_headers

from ..kill.history import Checker, Dumped, Event, Place
from .cluster import NODES, PLACES, SINGLE, Cluster, State, batches, wait_until
from .load import METADATA_MS, Traffic, read_back, read_commits, read_known

pytestmark = pytest.mark.slow

LEADER, FOLLOWER, TWO, ALL = "leader", "follower", "two of three", "all"
PROCESS, DISKS = "kill -9", "two disks"
ROUNDS = (LEADER, FOLLOWER, TWO, LEADER, ALL, LEADER, FOLLOWER, TWO, PROCESS, DISKS)
ACKS_MIN = 500
MISSES_PER_ROUND_MAX = 3
SINGLES = [place for place in PLACES if place[0] == SINGLE]


C = TypeVar("C", bound=Cluster)


class Run:
    """Three nodes under load, with the history and statistics of the rounds."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.checker = Checker()
        self.read_to: dict[Place, int] = {}
        self.dumped_to: dict[Place, int] = {}
        self.load = Traffic(self.cluster.addresses, self.events)
        self.in_flight: list[int] = []
        self.elections = 0
        self.waits: defaultdict[str, list[float]] = defaultdict(list)
        # Kinds of rounds that count without an election.
        self.without_election = {FOLLOWER}
        self._readers = itertools.count(1)

    # -- one round

    def round(self, kind: str) -> bool:
        """Run one round: load, crash, restart, check. Return True if the round counts."""
        if self.random.random() < 0.5:
            self.cluster.move_leaders_back()
        self.await_acks()
        victims = self._draw(kind)
        time.sleep(2 * METADATA_MS / 1000 + self.random.uniform(0, 0.3))
        before = self.cluster.partition_states()
        in_flight = self.load.in_flight
        waits = self._crash(kind, victims, before)
        self._revive(kind, victims)
        self.await_recovery()
        after = self.cluster.partition_states()
        elections = sum(after[place].epoch > before[place].epoch for place in PLACES)
        self.check()
        counts = in_flight > 0 and (elections > 0 or kind in self.without_election)
        if counts:
            self.in_flight.append(in_flight)
            self.elections += elections
            self.waits[kind] += waits
        print(
            f"{kind:<12} {victims}: {in_flight} in flight, {elections} elections, "
            f"{len(waits)} waits{f' of up to {max(waits):.2f} s' if waits else ''}"
            f"{'' if counts else ': does not count'}",
            flush=True,
        )
        return counts

    def await_acks(self) -> None:
        """Wait until some more records are acknowledged."""
        before = self.load.acked
        self.load.check()
        wait_until(lambda: self.load.acked - before >= ACKS_MIN, lambda: "nothing is acknowledged")

    def _draw(self, kind: str) -> list[int]:
        """Return the nodes to crash, in order."""
        if kind in (ALL, PROCESS):
            return self.random.sample(NODES, 3)
        if kind in (TWO, DISKS):
            return self.random.sample(NODES, 2)
        leaders = sorted({state.leader for state in self.cluster.partition_states().values()})
        if kind == LEADER:
            return [self.random.choice(leaders)]
        return [self._follower()]

    def _follower(self) -> int:
        """Restart a node, which then leads no partition, and return it."""
        node = self.random.choice(NODES)
        self.cluster.stop(node)
        self.cluster.revive(node)
        self.cluster.await_in_sync()
        assert all(state.leader != node for state in self.cluster.partition_states().values())
        self.await_acks()
        return node

    def _crash(self, kind: str, victims: list[int], before: dict[Place, State]) -> list[float]:
        """Crash nodes while clients continue if possible. Return their waiting times in seconds."""
        if kind in (PROCESS, DISKS):
            self.cluster.kill()
            for node in victims if kind == DISKS else ():
                self.cluster.lose_directory(node)
            return []
        concerned = [place for place in PLACES if before[place].leader in victims]
        if kind == FOLLOWER:
            concerned = list(PLACES)
        if kind == TWO:
            concerned = SINGLES  # the other topic has too few replicas for acks=all
        self.load.watch([] if kind == ALL else concerned)
        for node in victims:
            self.cluster.crash(node)
            time.sleep(self.random.choice([0, 0, self.random.uniform(0, 1)]))
        waits = self._await_watched(f"the crash of {victims}")
        if kind == FOLLOWER:
            (victim,) = victims
            assert all(
                victim not in state.in_sync for state in self.cluster.partition_states().values()
            )
        if kind == TWO:
            read_back(self.cluster, self.events, self.read_to, SINGLES)
            self._read_survivor(victims)
        return waits

    def _await_watched(self, description: str) -> list[float]:
        """Wait for an ack in each watched partition. Return the waiting times in seconds."""
        wait_until(
            lambda: None not in self.load.waits.values(),
            lambda: f"no acks after {description}: {self.load.waits}",
            pause=0.005,
        )
        return [seconds for seconds in self.load.waits.values() if seconds is not None]

    def _read_survivor(self, dead: list[int]) -> None:
        """Check that a single replica, too few for acks=all, still serves its committed records."""

        def leads() -> bool:
            states = self.cluster.partition_states().values()
            return all(state.leader not in (*dead, -1) for state in states)

        wait_until(leads, lambda: f"the last node does not lead: {self.cluster.partition_states()}")
        for place in PLACES:
            reader = f"survivor-{next(self._readers)}"
            known = read_known(self.cluster, self.events, reader, place)
            assert known >= self.dumped_to.get(place, 0), f"{place}: {known} records are readable"

    def _revive(self, kind: str, victims: list[int]) -> None:
        if kind in (PROCESS, DISKS):
            self.cluster.start()
            return
        self.random.shuffle(victims)
        for node in victims:
            time.sleep(self.random.choice([0, self.random.uniform(0, 0.5)]))
            self.cluster.revive(node)

    def await_recovery(self) -> None:
        """Wait until all replicas are in sync."""
        self.cluster.await_in_sync()

    # -- checks

    def check(self, *, everything: bool = False) -> None:
        """Read new records (or all) and check them against the history."""
        if everything:
            self.read_to.clear()
            self.dumped_to.clear()
        read_back(self.cluster, self.events, self.read_to, PLACES)
        read_commits(self.cluster, self.events)
        for place in PLACES:
            self._dump(place)
        self._judge()
        self.load.check()

    def _judge(self) -> None:
        end = len(self.events)
        self.checker.feed(self.events[:end])
        del self.events[:end]  # clients append concurrently
        found = self.checker.findings
        assert not found, f"{len(found)} findings, the first: {[*map(str, found[:10])]}"

    def _dump(self, place: Place) -> None:
        """Read the files of all replicas while all of them are in sync."""
        while True:
            self.cluster.await_in_sync([place])
            before = self.cluster.partition_states()[place]
            end = self.cluster.high_watermark(place)
            begin = self.dumped_to.get(place, 0)
            replicas = self.cluster.dump(place, begin)
            if self.cluster.partition_states().get(place) == before:
                break
        self.events.append(Dumped(place, begin, end, replicas))
        committed = [each.last + 1 for each in replicas[1] if each.last < end]
        self.dumped_to[place] = max(committed, default=begin)

    def close(self) -> None:
        """Stop the clients and check all records again."""
        self.load.stop_producers()
        self.load.stop_members()
        self.check(everything=True)


@contextmanager
def running(cluster: C, seed: int, make: Callable[[C, int], Run]) -> Iterator[Run]:
    """Start a run with its clients, and end its process afterwards."""
    run = make(cluster, seed)
    logging.disable(logging.ERROR)  # clients log every refused connection
    try:
        run.cluster.start()
        run.cluster.await_in_sync()
        for _ in range(2):
            run.load.add_producer()
            run.load.add_confluent_producer()
            run.load.add_member()
        run.load.add_reader()
        yield run
    finally:
        run.load.abandon()
        run.cluster.close()
        del run.load
        logging.disable(logging.NOTSET)
        gc.collect()  # closes the clients' sockets while warnings are not recorded


@pytest.mark.sized
def test_crashes_lose_no_acknowledged_record(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    crash_nodes(
        Cluster(tmp_path), request.config.getoption("rounds"), request.config.getoption("seed")
    )


def crash_nodes(
    cluster: C,
    rounds: int,
    seed: int,
    kinds: Sequence[str] = ROUNDS,
    make: Callable[[C, int], Run] = Run,
) -> None:
    """Run rounds of all kinds, and print statistics."""
    print(f"\nseed {seed}")
    draw = random.Random(seed)
    shuffled = draw.sample(kinds, len(kinds))  # each seed has different rounds if there are few
    planned = [shuffled[number % len(kinds)] for number in range(rounds)]
    draw.shuffle(planned)
    missed = 0
    with running(cluster, seed, make) as run:
        for kind in planned:
            while not run.round(kind):
                missed += 1
                assert missed <= MISSES_PER_ROUND_MAX * rounds, "too many rounds do not count"
        run.close()
    crashes = ", ".join(f"{count} of {kind}" for kind, count in Counter(planned).items())
    print(f"figures: seed {seed}, {rounds} crashes ({crashes}), {missed} rounds did not count")
    print(
        f"figures: {run.checker.acked} records acknowledged, {run.elections} elections, "
        f"{min(run.in_flight)} to {max(run.in_flight)} records in flight at a crash; 0 lost, "
        "doubled or moved; replicas equal up to the high watermark"
    )
    print(f"figures: from crash to the first ack: {_describe(run.waits)}")


def _describe(waits: dict[str, list[float]]) -> str:
    return ", ".join(
        f"{kind} median {statistics.median(each):.2f} s, at most {max(each):.2f} s"
        for kind, each in sorted(waits.items())
        if each
    )


def test_harness_detects_divergence_and_loss(tmp_path: Path) -> None:
    """The harness reports a replica that differs and a batch that all replicas have lost."""
    place = PLACES[0]
    with running(Cluster(tmp_path), 0, Run) as run:
        run.await_acks()
        run.load.stop_producers()
        run.load.stop_members()
        run.check()
        end = run.cluster.high_watermark(place)
        run.cluster.kill()
        changed = dict(run.cluster.dump(place, 0))
        _flip_a_bit(run.cluster.replica(2, place))
        changed[2] = list(batches(run.cluster.replica(2, place), 0))
        run.checker.feed([Dumped(place, 0, end, changed)])
        assert {finding.kind for finding in run.checker.findings} == {"replicas"}
        run.checker.findings.clear()
        for node in NODES:
            _cut_last_batch(run.cluster, node, place)
        run.cluster.start()
        with pytest.raises(AssertionError, match="lost"):
            run.check()
    assert {finding.kind for finding in run.checker.findings} <= {"lost", "fell"}


def _newest_segment(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def _flip_a_bit(directory: Path) -> None:
    """Flip a bit in the last record of a replica."""
    path = _newest_segment(directory)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _cut_last_batch(cluster: Cluster, node: int, place: Place) -> None:
    """Remove the newest batch from a replica's file, and the checkpoints."""
    path = _newest_segment(cluster.replica(node, place))
    data = path.read_bytes()
    positions = [position for position, _ in iter_headers(data)]
    path.write_bytes(data[: positions[-1]])
    for checkpoint in (cluster.data / f"node-{node}").glob("*-checkpoint"):
        checkpoint.unlink()
