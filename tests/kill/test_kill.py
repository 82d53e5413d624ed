"""Repeated kill -9 of a server under load: acknowledged records survive.

Half of the rounds kill the server in a special phase (`PHASES`). A round outside its phase, or
without a request in flight at the kill, does not count and is repeated.
"""

from __future__ import annotations

import functools
import gc
import logging
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kbroker.protocol.records import iter_headers
from kbroker.storage.naming import LOG, file_name

from .. import waiting
from ..loop_latency import slowness
from .history import Checker, Event, Killed, Place
from .load import PLACES, Load, read_back
from .server import KEPT, TRIMMED, Restart, Server

pytestmark = pytest.mark.slow

PHASES = ("roll", "retention", "rebalance", "recovery")
ACKS_MIN = 1000
RESTART_SECONDS_MAX = 1.0
ROUNDS_THAT_MEASURE = 100
MISSES_PER_ROUND_MAX = 3

# Phases are short: check for them every ms.
wait_until = functools.partial(waiting.wait_until, pause=0.001)


class Run:
    """A server under load, and the state of its checks."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.server = Server(directory)
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.checker = Checker(trimmed={TRIMMED})
        self.read_to: dict[Place, int] = {}
        self.load = Load([self.server.address], self.events)
        self.restarts: list[Restart] = []
        self.in_flight: list[int] = []
        self.acks: list[int] = []
        self.kills = 0
        self.logs_in_recovery = 0
        self.starts_in_doubt = 0
        self._fed = 0
        self._has_extra_member = False

    # -- one round

    def round(self, phase: str | None) -> bool:
        """Run load, kill, restart and check. Returns True if the round counts."""
        before = self.load.acked
        self.load.check()
        wait_until(lambda: self.load.acked - before >= ACKS_MIN, f"{ACKS_MIN} acks")
        if phase == "rebalance":
            # Wait until the previous rebalance is over.
            wait_until(
                lambda: (self.server.group_states() or ["Stable"])[-1] == "Stable",
                "the end of the previous rebalance",
            )
        happened = self._await_phase(phase)
        in_flight, acks = self.load.in_flight, self.load.acked - before
        self._kill()
        counts = happened() and in_flight > 0
        if phase == "recovery":
            counts = self._kill_in_recovery() and counts
        self.restarts.append(self.server.start())
        self.check()
        if counts:
            self.in_flight.append(in_flight)
            self.acks.append(acks)
        print(
            f"{phase or 'any':<10} {acks} acks, {in_flight} in flight, restart "
            f"{self.restarts[-1].seconds:.2f} s{'' if counts else ': does not count'}",
            flush=True,
        )
        return counts

    def _kill(self) -> None:
        self.server.kill()
        self.load.holding.set()
        self.kills += 1
        starts = self.server.log_starts(TRIMMED)
        logged = self.server.retention_starts()
        self.starts_in_doubt += any(start > starts[index] for index, start in logged.items())
        self.events.extend(Killed((TRIMMED, index), start) for index, start in starts.items())

    def check(self, *, everything: bool = False) -> None:
        """Read the new records, or all of them, and check the history."""
        if everything:
            self.read_to.clear()
        trio.run(read_back, self.server.address, self.events, self.read_to)
        end = len(self.events)
        self.checker.feed(self.events[self._fed : end])
        self._fed = end
        found = self.checker.findings
        assert not found, f"{len(found)} findings, the first ones: {[*map(str, found[:10])]}"
        self.load.check()
        self.load.holding.clear()

    # -- phases: each waits for its phase and returns a check, for after the kill, that it was hit

    def _await_phase(self, phase: str | None) -> Callable[[], bool]:
        if phase == "roll":
            return self._await_roll()
        if phase == "retention":
            return self._await_retention()
        if phase == "rebalance":
            return self._await_rebalance()
        time.sleep(self.random.uniform(0, 0.3))
        return lambda: True

    def _await_roll(self) -> Callable[[], bool]:
        """Wait until a segment is rolled whose start no checkpoint covers yet."""
        before = self.server.segments(KEPT)

        def rolled() -> list[int]:
            now = self.server.segments(KEPT)
            return [p for p, bases in now.items() if bases and bases[-1:] != before[p][-1:]]

        wait_until(rolled, "a new segment")
        (first, *_) = rolled()
        base = self.server.segments(KEPT)[first][-1]
        time.sleep(self.random.uniform(0, 0.01))
        return lambda: (
            self.server.segments(KEPT)[first][-1] == base
            and self.server.recovery_points(KEPT)[first] <= base
        )

    def _await_retention(self) -> Callable[[], bool]:
        """Wait until the log start has advanced and some segments below it still exist."""
        before = self.server.retention_starts()
        wait_until(lambda: self.server.retention_starts() != before, "a new log start offset")
        starts = self.server.retention_starts()
        if self.random.random() < 0.5:
            # Kill while the files are being deleted.
            wait_until(
                lambda: any(
                    self.server.log_starts(TRIMMED)[p] >= start for p, start in starts.items()
                ),
                "a checkpoint of the log start offset",
            )
        else:
            time.sleep(self.random.uniform(0, 0.02))
        return lambda: any(
            bases[0] < starts.get(p, 0) for p, bases in self.server.segments(TRIMMED).items()
        )

    def _await_rebalance(self) -> Callable[[], bool]:
        """Start or stop a member, and wait until the group rebalances."""
        seen = len(self.server.group_states())
        if self._has_extra_member:
            self.load.remove_member()
        else:
            self.load.add_member()
        self._has_extra_member = not self._has_extra_member
        wait_until(lambda: len(self.server.group_states()) > seen, "a rebalance")
        time.sleep(self.random.uniform(0, 0.05))
        return lambda: self.server.group_states()[-1] != "Stable"

    def _kill_in_recovery(self) -> bool:
        """Start and kill twice, each time before anything new is acknowledged.

        The first kill is early, the second when clients have reconnected and logs are being
        recovered.
        """
        acked = self.load.acked
        for with_logs in (False, True):
            self.server.launch()
            wait_until(lambda: self.server.open_files()[0], "a locked log directory")
            if with_logs:
                wait_until(lambda: self.server.open_files()[1], "an open log")
                self.logs_in_recovery += 1
            time.sleep(self.random.uniform(0, 0.005 if with_logs else 0.1))
            self._kill()
        return self.load.acked == acked

    def close(self) -> None:
        """Stop the clients after everything is acknowledged, and read everything again."""
        self.load.stop_producers()
        self.load.stop_members()
        self.check(everything=True)


@contextmanager
def running(directory: Path, seed: int) -> Iterator[Run]:
    """Run a server with clients, and stop everything at the end."""
    run = Run(directory, seed)
    logging.disable(logging.ERROR)  # the clients log every refused connection
    try:
        run.server.start()
        for _ in range(3):
            run.load.add_producer()
        for _ in range(2):
            run.load.add_member()
        run.load.add_committer()
        yield run
    finally:
        run.load.abandon()
        run.server.close()
        del run.load
        logging.disable(logging.NOTSET)
        gc.collect()  # close the clients' sockets now, outside of other tests


def plan(rounds: int, draw: random.Random) -> list[str | None]:
    """Return the phase of each round in random order; every other round has none."""
    first = draw.randrange(len(PHASES))
    special = [PHASES[(first + i) % len(PHASES)] for i in range((rounds + 1) // 2)]
    planned = [*special, *([None] * (rounds - len(special)))]
    draw.shuffle(planned)
    return planned


@pytest.mark.sized
def test_killed_server_loses_no_acknowledged_record(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = request.config.getoption("rounds")
    seed: int = request.config.getoption("seed")
    print(f"\nseed {seed}")
    done: Counter[str] = Counter()
    missed = 0
    with running(tmp_path, seed) as run:
        for phase in plan(rounds, run.random):
            while not run.round(phase):
                missed += 1
                assert missed <= MISSES_PER_ROUND_MAX * rounds, "too many rounds do not count"
            done[phase or "any"] += 1
        run.close()
    print(
        f"figures: seed {seed}, {rounds} rounds ({', '.join(f'{n} {m}' for m, n in done.items())}),"
        f" {missed} did not count, {run.kills} kills, {run.logs_in_recovery} while logs were recovered"
    )
    print(
        f"figures: {run.checker.acked} records acknowledged, {run.checker.commits} commits; 0 lost,"
        f" doubled or moved; at a kill at least {min(run.acks)} new acks and {min(run.in_flight)}"
        f" to {max(run.in_flight)} records in flight;"
        f" {run.starts_in_doubt} kills between a log start and its checkpoint"
    )
    assert set(done) >= set(PHASES) or rounds < 2 * len(PHASES)
    assert run.checker.commits > rounds
    # A few restarts while other tests run do not measure the restart time.
    if rounds >= ROUNDS_THAT_MEASURE:
        print(f"figures: {check_restarts(run.restarts)}")


def check_restarts(restarts: list[Restart]) -> str:
    """Check that the median restart takes less than a second of CPU on a usual machine.

    Returns the results as text.
    """
    slow = slowness()
    total = statistics.median(each.seconds for each in restarts)
    own = statistics.median(each.own for each in restarts)
    rows = " ".join(f"{each.seconds:.2f} ({each.own:.2f})" for each in sorted(restarts))
    assert own < RESTART_SECONDS_MAX * slow, rows
    print(f"restarts in seconds, in brackets without the wait for a CPU: {rows}")
    return (
        f"restart: median {total:.2f} s, {own:.2f} s without the wait for a CPU that other "
        "programs used"
    )


def test_check_detects_slow_restarts() -> None:
    slow, held_up = Restart(5.0 * slowness(), 0.1), Restart(1.5, 1.2)
    assert "median 1.50 s, 0.30 s" in check_restarts([slow, slow, held_up, held_up, held_up])
    with pytest.raises(AssertionError):
        check_restarts([slow, slow, slow, held_up, held_up])


def test_check_detects_missing_batch(tmp_path: Path) -> None:
    """The test detects a server that lost its last acknowledged batch."""
    with running(tmp_path, seed=0) as run:
        wait_until(lambda: run.load.acked > 200, "200 acks")
        run.load.stop_producers()
        run.load.stop_members()
        run.server.kill()
        _cut_last_batch(run.server, PLACES[0])
        run.server.start()
        with pytest.raises(AssertionError, match="lost"):
            run.check()
    assert {finding.kind for finding in run.checker.findings} == {"lost"}
    assert {finding.text[:6] for finding in run.checker.findings} == {"kept-0"}


def _cut_last_batch(server: Server, place: Place) -> None:
    """Delete the newest batch of a partition and all checkpoints of its length."""
    base = server.segments(place[0])[place[1]][-1]
    path = server.data / f"{place[0]}-{place[1]}" / file_name(base, LOG)
    data = path.read_bytes()
    positions = [position for position, _ in iter_headers(data)]
    path.write_bytes(data[: positions[-1]])
    for checkpoint in server.data.glob("*-checkpoint"):
        checkpoint.unlink()
