"""Measurements of several running brokers in turns, row by row.

A disturbance of the machine therefore affects all brokers, and a JVM stays warm through all rounds.
A row is measured again if the hypervisor took CPU time away.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.processors import cpu_ticks, stolen_share

from .brokers import BenchmarkFailed, Broker, Kbroker, RowUnsupported
from .java_client import JavaClient
from .python_client import PythonClient
from .rows import (
    CODECS,
    CONNECTIONS,
    GROUPS,
    PARTITIONS,
    READERS,
    RESTARTED_BYTES,
    RESTARTED_PARTITIONS,
    SIZES,
    TRANSACTING,
    Sample,
)
from .spark_client import SparkClient
from .wire_client import WireClient

# A sample with its broker, durability and round.
Record = dict[str, Any]

DURABILITY = {False: "os", True: "fsync"}
IDLE_SECONDS = 1
# Maximum share of CPU time that a hypervisor may take while a row is measured.
STOLEN_MAX = 0.02
PATIENCE_SECONDS = 900
# Duration of a probe for stolen CPU time, and pause between two probes.
PROBE_SECONDS, PAUSE_SECONDS = 0.5, 5


class Machine:
    """The CPU cores, which a hypervisor may take away temporarily.

    Args:
        patience: Maximum total time for waiting and repeated measurements, in seconds.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience

    def undisturbed(self, measure: Callable[[], Iterable[Sample]]) -> list[Sample]:
        """Return the samples of an undisturbed measurement, or of the least disturbed one."""
        least, found = 1.0, None
        while found is None or (least > STOLEN_MAX and self._patience > 0):
            began = time.monotonic()
            self._wait()
            os.sync()  # write earlier dirty pages now, not during this row
            before = cpu_ticks()
            samples = [*measure()]
            stolen = stolen_share(before)
            if found is not None:
                self._patience -= time.monotonic() - began
            if found is None or stolen < least:
                least, found = stolen, samples
            if stolen > STOLEN_MAX:
                say(f"disturbed: the hypervisor took {stolen:.0%} of the CPU time")
        return found

    def _wait(self) -> None:
        """Wait until no CPU time is stolen, or the patience is used up."""
        while self._patience > 0:
            began, before = time.monotonic(), cpu_ticks()
            while time.monotonic() < began + PROBE_SECONDS:
                pass  # CPU time is stolen only from busy processes
            if stolen_share(before) <= STOLEN_MAX:
                break
            time.sleep(PAUSE_SECONDS)
            self._patience -= time.monotonic() - began


class Contest:
    """Measurements of all brokers with one durability. Call `stop` at the end.

    Args:
        kinds: Broker classes by name.
        durable: True to sync records before they are acknowledged.
        options: Command-line options.
        settings: Settings for all brokers.
        machine: The machine on which they run.
    """

    def __init__(
        self,
        kinds: Mapping[str, type[Broker]],
        durable: bool,
        options: argparse.Namespace,
        settings: Mapping[str, str] | None,
        machine: Machine,
    ) -> None:
        self._kinds = kinds
        self._durable = durable
        self._options = options
        self._settings = settings
        self._brokers: dict[str, Broker] = {}
        self._machine = machine
        self._measured = 0

    def records(self) -> Iterator[Record]:
        """Yield the samples of all rows, `options.repeat` times.

        Raises:
            BenchmarkFailed: A broker or client failed.
        """
        repeats = range(self._options.repeat)
        for repeat in repeats:
            for name in self._brokers_of_round(repeat):
                yield from self._records(name, repeat, partial(self._measure_start, name))
        for name, broker in self._brokers.items():
            say(f"{name}, {DURABILITY[self._durable]}: {self._options.warm:g} s of load")
            PythonClient(broker, self._options.scale, "warm").warm_up(self._options.warm)
        for repeat in repeats:
            for number, row in enumerate(self._rows()):
                for name in self._brokers_of_round(repeat + number):
                    yield from self._records(name, repeat, partial(self._run, name, row))
            say(f"{DURABILITY[self._durable]}, round {repeat + 1}")
        for name in self._kinds:
            yield from self._records(name, repeats[-1], partial(self._measure_memory, name))
            if is_wanted("restart", self._options):
                yield from self._measure_restarts(name, repeats)

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.stop()

    def _brokers_of_round(self, number: int) -> Sequence[str]:
        """Return the names of the brokers in the order of a round.

        Each round starts with another broker, because the first broker of a round warms up caches
        that the second one uses.
        """
        names = [*self._kinds]
        first = number % len(names)
        return names[first:] + names[:first]

    def _records(
        self, name: str, repeat: int, measure: Callable[[], Iterable[Sample]]
    ) -> Iterator[Record]:
        try:
            samples = self._machine.undisturbed(measure)
        except RowUnsupported as error:
            if issubclass(self._kinds[name], Kbroker):
                raise
            say(f"{error}: continuing without this row")
            return
        for sample in samples:
            yield recorded(sample, self._kinds[name].name, self._durable, repeat)

    def _measure_start(self, name: str) -> Iterator[Sample]:
        if name in self._brokers:
            self._brokers.pop(name).stop()
        kind = self._kinds[name]
        directory = self._options.directory / kind.name
        broker = kind(directory, durable=self._durable, settings=self._settings)
        self._brokers[name] = broker
        yield Sample("start", broker.start_seconds)
        time.sleep(IDLE_SECONDS)
        yield Sample("idle memory", broker.resident_bytes() / 1e6)

    def _measure_restarts(self, name: str, repeats: Iterable[int]) -> Iterator[Record]:
        """Restart a broker after more data and many partitions were added, and measure the time."""
        broker, scale = self._brokers[name], self._options.scale
        partitions = int(scale * RESTARTED_PARTITIONS)
        topic = ""

        def restart() -> Iterator[Sample]:
            nonlocal topic
            if not topic:
                client = PythonClient(broker, scale, "restart")
                client.fill("much", int(scale * RESTARTED_BYTES))
                topic = client.create_topic("many", partitions)
            broker.shut_down()
            began = time.perf_counter()
            try:
                broker.start()
                PythonClient(broker, scale, "restarted").wait_for_leaders(topic, partitions)
            except BenchmarkFailed as error:
                raise RowUnsupported(str(error)) from error
            yield Sample("restart", time.perf_counter() - began)

        for repeat in repeats:
            yield from self._records(name, repeat, restart)

    def _measure_memory(self, name: str) -> Iterator[Sample]:
        yield Sample("memory", self._brokers[name].resident_bytes() / 1e6)

    def _rows(self) -> list[str]:
        return [row for row in PLAN if is_wanted(row, self._options)]

    def _run(self, name: str, row: str) -> Iterable[Sample]:
        """Run one entry of the plan, with new topics and groups."""
        self._measured += 1
        client = PythonClient(self._brokers[name], self._options.scale, f"{self._measured}")
        client.connection_partitions = self._options.processes or 1
        return PLAN[row](client)


def _run_java(client: PythonClient, size: str) -> Iterable[Sample]:
    """Run the Java tools with records of one of `SIZES`."""
    return JavaClient(client).bulk(size)


Run = Callable[[PythonClient], Iterable[Sample]]


def _measurements_by_count(
    name: str, run: Callable[[WireClient, int], Iterable[Sample]], counts: Iterable[int]
) -> Mapping[str, Run]:
    """Return a measurement for each count, with the name `name` followed by the count."""

    def with_count(client: PythonClient, count: int) -> Iterable[Sample]:
        return run(WireClient(client), count)

    return {f"{name} {count}": partial(with_count, count=count) for count in counts}


# Measurements in order; one entry may yield several rows.
PLAN: Mapping[str, Run] = {
    "create topic": PythonClient.create_topics,
    "join": PythonClient.join,
    "many join": PythonClient.join_many,
    "ping": PythonClient.ping,
    "pipelined": PythonClient.pipelined,
    "produce at rate": PythonClient.produce_at_rate,
    "receive at rate": PythonClient.receive_at_rate,
    **{
        f"transactions {producers}": partial(PythonClient.transactions, producers=producers)
        for producers in TRANSACTING
    },
    **{f"bulk {size}": partial(PythonClient.bulk, name=size) for size in SIZES},
    **{f"compressed {codec}": partial(PythonClient.compressed, codec=codec) for codec in CODECS},
    "idempotent": PythonClient.idempotent,
    **{f"java {size}": partial(_run_java, size=size) for size in SIZES},
    **_measurements_by_count("connections", WireClient.connections, CONNECTIONS),
    **_measurements_by_count("partitions", WireClient.partitions, PARTITIONS),
    **_measurements_by_count("readers", WireClient.readers, READERS),
    **_measurements_by_count("groups", WireClient.groups, GROUPS),
    "deletion": lambda client: WireClient(client).deletion(),
    "cold": lambda client: WireClient(client).cold(),
    "spark": lambda client: SparkClient(client).read(),
}


def is_wanted(row: str, options: argparse.Namespace) -> bool:
    """Return True if the row matches `--rows`."""
    return not options.rows or any(word in row for word in options.rows)


def recorded(sample: Sample, broker: str, durable: bool, repeat: int) -> Record:
    """Return a sample as stored in reports."""
    return {"broker": broker, "durable": durable, "repeat": repeat, **sample._asdict()}


def say(text: str) -> None:
    """Print progress on the error stream."""
    print(text, file=sys.stderr, flush=True)
