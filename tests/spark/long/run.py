"""A pipeline from orders through enrich to a lake; a broker and two Spark jobs are killed."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.list_offsets import LATEST, offsets_at
from kbroker.pipelines.audit import check_lake, check_same, check_topic
from kbroker.pipelines.templates.project import copy_project
from tests.kill.server import ROOT, Server

from .jobs import Job
from .orders import CUSTOMERS, ENRICHED, ORDERS, OrderWriter

PARTITIONS = 4
# Minimum number of batches of a job, so that kills hit batches.
BATCHES_MIN = 60
# How far the orders are ahead of the pipeline, as a share of all orders.
AHEAD = 0.2
# Kills happen between these shares of the orders.
MOMENTS = (0.03, 0.85)
DELAY_SECONDS = 1.5
POLL_SECONDS = 0.1
STUCK_SECONDS = 240
MISSES_PER_KILL_MAX = 3

BROKER, ENRICH, LAKE = "broker", "enrich", "lake"


@dataclass(order=True)
class Kill:
    """A kill at a share of processed orders, plus a delay in seconds."""

    at: float
    victim: str
    delay: float


def plan(seed: int, kills: int) -> list[Kill]:
    """Plan as many kills of the broker as of Spark; the Spark jobs take turns."""
    chance = random.Random(seed)
    spark = [(ENRICH, LAKE)[number % 2] for number in range(kills)]
    victims = [BROKER] * kills + spark
    return sorted(
        Kill(chance.uniform(*MOMENTS), victim, chance.uniform(0, DELAY_SECONDS))
        for victim in victims
    )


class Run:
    """The whole run: the processes, the kills and the final checks."""

    def __init__(self, directory: Path, count: int) -> None:
        self.count = count
        self.directory = directory
        self.lake = directory / LAKE
        topics = (f"{ORDERS}:{PARTITIONS}", f"{CUSTOMERS}:1", f"{ENRICHED}:{PARTITIONS}")
        self.server = Server(directory / BROKER, settings=(), topics=topics)
        self.bootstrap = f"localhost:{self.server.port}"
        batch = str(max(count // BATCHES_MIN, 100))
        project = copy_project("enrich", "enrichment", directory)
        common = ["--bootstrap", self.bootstrap]
        enrich = ["enrichment", *common, "--max-offsets", batch, "--customers-age-seconds", "600"]
        archive = ["kbroker", "lake", "archive", str(self.lake), ENRICHED, *common]
        archive += ["--format", "raw", "--every", "1", "--batch", batch]
        environ = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(project)))}
        self.jobs = {
            name: Job(name, [sys.executable, "-m", *words], checkpoint, directory, environ)
            for name, words, checkpoint in (
                (ENRICH, enrich, directory / "checkpoint"),
                (LAKE, archive, self.lake / "_kbroker" / ENRICHED / "checkpoint"),
            )
        }
        self.orders = OrderWriter(self.bootstrap, count, int(count * AHEAD))
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    def close(self) -> None:
        for job in self.jobs.values():
            job.close()
        self.orders.close()
        self.server.close()

    # -- checks

    def verify(self) -> str:
        """Audit all topics and the lake, and return the results. Raise AuditError for any problem."""
        orders = check_topic(self.bootstrap, ORDERS, unique="key")
        assert orders.records == self.count, f"{orders.records} of {self.count} orders"
        check_same(self.bootstrap, ORDERS, ENRICHED, by="field:id", distinct=True)
        archived = check_lake(self.bootstrap, ENRICHED, self.lake)
        again = archived.records - self.count
        return (
            f"{self.count:,} orders, {again:,} of them enriched again after a kill, "
            f"{archived.records:,} records in {archived.files:,} files: 0 missing, 0 doubled"
        )

    # -- the run

    def run(self, kills_left: Sequence[Kill]) -> None:
        """Start everything, carry out the kills, and wait for the end."""
        self.server.start()
        self.orders.start()
        for job in self.jobs.values():
            job.start()
        left = list(kills_left)
        while left:
            if self._kill(left[0]):
                left.pop(0)
            else:
                self.misses[left[0].victim] += 1
                assert self.misses.total() <= MISSES_PER_KILL_MAX * len(kills_left), self.misses
        self._wait_until(self._is_finished, "the end")
        for job in self.jobs.values():
            job.stop()

    def _share(self) -> float:
        return self.jobs[ENRICH].checkpoint.read() / self.count

    def _kill(self, kill: Kill) -> bool:
        """Kill and restart a process. Return True if work was interrupted."""
        victim = kill.victim
        self._wait_until(lambda: self._share() >= kill.at, f"{kill.at:.0%} of the orders")
        self._wait_until(lambda: self._is_at_work(victim), f"work of {victim}")
        time.sleep(kill.delay)
        if victim == BROKER:
            self.server.kill()
            hit = self._is_at_work(BROKER)
            self.server.start()
        else:
            job = self.jobs[victim]
            job.kill()
            hit = job.is_at_work()
            job.start()
        self.hits[victim] += hit
        return hit

    def _is_at_work(self, victim: str) -> bool:
        """Return True if the broker has requests in flight, or if the Spark job is in a batch."""
        if victim == BROKER:
            return bool(self.orders.in_flight) or any(
                job.is_at_work() for job in self.jobs.values()
            )
        return self.jobs[victim].is_at_work()

    def _is_finished(self) -> bool:
        """Return True if all orders are enriched and all enriched orders are in the lake."""
        if not self.orders.is_done or self.jobs[ENRICH].checkpoint.read() < self.count:
            return False
        return self.jobs[LAKE].checkpoint.read() >= end_of(self.bootstrap, ENRICHED)

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fail if there is no progress for STUCK_SECONDS."""
        last, deadline = None, time.monotonic() + STUCK_SECONDS
        while not condition():
            time.sleep(POLL_SECONDS)
            self.orders.set_processed(self.jobs[ENRICH].checkpoint.read())
            assert not self.orders.failed, self.orders.failed[:3]
            for job in self.jobs.values():
                job.check()
            state = self._state()
            if state != last:
                last, deadline = state, time.monotonic() + STUCK_SECONDS
            assert time.monotonic() < deadline, self._stuck(what)

    def _state(self) -> tuple[int, ...]:
        jobs = [(job.checkpoint.planned(), job.checkpoint.done()) for job in self.jobs.values()]
        return (self.orders.acknowledged, *(number for pair in jobs for number in pair))

    def _stuck(self, what: str) -> str:
        logs = "\n\n".join(job.log_tail() for job in self.jobs.values())
        return f"nothing moves while waiting for {what}: {self._state()}\n{logs}"


def end_of(bootstrap: str, topic: str) -> int:
    """Return the sum of the end offsets of a topic's partitions."""

    async def ask() -> int:
        async with open_cluster([Endpoint.parse(bootstrap)]) as cluster:
            partitions = [(topic, number) for number in range(PARTITIONS)]
            return sum((await offsets_at(cluster, partitions, LATEST)).values())

    return trio.run(ask)
