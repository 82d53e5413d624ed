"""Real processes on disks with random I/O errors: acknowledged records exist exactly once.

Idempotent producers, group members and transactions of the bank run all the time. When a disk works
again, the broker recovers by itself, or `cluster health` reports the problem and it is restarted.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from ..cluster.etcd import Etcd
from ..kill import server as kill_server
from ..kill.history import Killed, Place
from ..kill.load import Load
from ..kill.server import TRIMMED, Server
from ..kill.test_kill import Run
from ..replication.cluster import NODES, PLACES, State
from ..replication.test_crashes import LEADER, crash_nodes
from ..replication.test_crashes import Run as CrashRun
from ..transactions import bank as bank_of
from ..transactions.bank import Bank, running_bank
from ..transactions.checker import Minimum, judge, report
from .commands import health_problems, wait_until, wait_until_healthy
from .etcd_cluster import EtcdCluster
from .failing_disk import FailingDisk, Fault, compiled, draw_fault

pytestmark = pytest.mark.long

ACKS_MIN, COMMITS_MIN = 300, 5
# Seconds after which a broker that does not recover by itself is restarted.
HEALTHY_SECONDS = 1.5
STOP_SECONDS = 20
ROUNDS_PER_CLUSTER = 4
LEADER_DISK, ANY_DISK = "disk of a leader", "disk of any node"
KINDS = (LEADER_DISK, ANY_DISK)
# Probability that a round restarts the broker while its disk fails.
RESTARTS_DURING = 0.3


def goes_on(server: Server) -> bool:
    """Return True if a broker on a healed disk is healthy without a restart, else ask it to stop."""
    assert server.process is not None
    ends_at = time.monotonic() + HEALTHY_SECONDS
    while server.process.poll() is None and time.monotonic() < ends_at:
        if not health_problems(server.bootstrap):
            return True
        time.sleep(0.2)
    server.process.terminate()
    return False


def end(server: Server) -> None:
    """Wait until a process that stops or failed to start has exited."""
    assert server.process is not None
    server.process.wait(STOP_SECONDS)
    assert "Traceback" not in server.log_path.read_text(), server.log_path
    server.process = None


class FailingRun(Run):
    """A server on a failing disk, under the load of the kill tests and the bank."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.disk = FailingDisk(compiled(directory), directory / "data", directory / "orders")
        settings = dict(each.split("=", 1) for each in (*kill_server._SETTINGS, *bank_of.SETTINGS))
        self.server = Server(
            directory,
            [f"{name}={value}" for name, value in settings.items()],
            (*kill_server._TOPICS, *bank_of.TOPICS),
            machine=self.disk.machine,
        )
        self.load = Load([self.server.address], self.events)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def fail(self, bank: Bank, fault: Fault) -> None:
        """Inject disk errors for a while, then check that all data exists."""
        self.await_work(bank)
        failed = Counter(self.disk.failed)
        self.disk.fail(fault.error, fault.rates)
        time.sleep(fault.seconds)
        how = self._restart_during() if self.random.random() < RESTARTS_DURING else ""
        self.disk.heal()
        fired = Counter(self.disk.failed) - failed
        how = self._bring_back(how)
        self.done[how] += 1
        self.failed += fired
        self.check()
        print(f"{fault.name}: {fired.total()} calls failed; {how}", flush=True)

    def await_work(self, bank: Bank) -> None:
        """Wait until records are acknowledged and transactions committed."""
        acked, commits = self.load.acked + ACKS_MIN, bank.commits + COMMITS_MIN

        def is_done() -> bool:
            bank.restart_fenced()
            self.load.check()
            return self.load.acked >= acked and bank.commits >= commits

        wait_until(is_done, self._log_end)

    def _restart_during(self) -> str:
        """Stop or kill the broker and start it again on the failing disk, which it may refuse."""
        process = self.server.process
        assert process is not None
        if process.poll() is None:
            process.send_signal(self.random.choice([signal.SIGTERM, signal.SIGKILL]))
        self._end()
        self.server.launch()
        time.sleep(self.random.uniform(0.2, 1.5))
        return "restarted while the disk failed"

    def _bring_back(self, how: str) -> str:
        """Restart the broker if it does not recover by itself; return the action."""
        if goes_on(self.server):
            return how or "went on by itself"
        self._end()
        self.server.start()
        wait_until_healthy(self.server.bootstrap)
        return how or "restarted"

    def _end(self) -> None:
        """Wait until the process has exited, and record the durable log starts."""
        end(self.server)
        starts = self.server.log_starts(TRIMMED)
        self.events.extend(Killed((TRIMMED, index), start) for index, start in starts.items())

    def _log_end(self) -> str:
        return self.server.log_path.read_text()[-4000:]


@contextmanager
def running(directory: Path, seed: int) -> Iterator[tuple[FailingRun, Bank]]:
    """Start a run with its clients; all processes end with it."""
    directory.mkdir()
    run = FailingRun(directory, seed)
    logging.disable(logging.ERROR)  # the clients log every refused connection
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        stack.callback(run.server.close)
        stack.callback(run.load.abandon)
        run.server.start()
        for _ in range(2):
            run.load.add_producer()
            run.load.add_member()
        yield run, stack.enter_context(running_bank(run.server, directory / "history", seed))


def test_failing_disk_loses_no_acknowledged_records(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = request.config.getoption("disk_faults")
    seed: int = request.config.getoption("seed")
    draw = random.Random(seed)
    began = time.monotonic()
    with running(tmp_path / "one", seed) as (run, bank):
        for _ in range(rounds):
            run.fail(bank, draw_fault(draw))
        bank.finish()
        run.close()
    history = bank.history()
    verdict = judge(history, Minimum(commits=10 * rounds))
    minutes = (time.monotonic() - began) / 60
    print(
        f"figures: one process, seed {seed}, {rounds} rounds in {minutes:.1f} min, {counts(run.done)}"
    )
    print(
        f"figures: calls that failed: {counts(run.failed)}; {run.checker.acked} records acknowledged, "
        f"{verdict.had.commits} transactions committed, {verdict.had.aborts} aborted; "
        f"{len(verdict.findings)} anomalies"
    )
    assert verdict.findings == [], report(history, verdict)
    assert verdict.refusals == []


class DiskRun(CrashRun):
    """Three processes, one disk of which fails at a time."""

    cluster: EtcdCluster

    def __init__(self, cluster: EtcdCluster, seed: int, disks: Mapping[int, FailingDisk]) -> None:
        super().__init__(cluster, seed)
        self.without_election = set(KINDS)
        self._disks = disks

    def _draw(self, kind: str) -> list[int]:
        return super()._draw(LEADER) if kind == LEADER_DISK else [self.random.choice(NODES)]

    def _crash(self, kind: str, victims: list[int], before: dict[Place, State]) -> list[float]:
        """Fail a disk until all partitions have accepted records without it."""
        (node,) = victims
        fault = draw_fault(self.random)
        self.load.watch(PLACES)
        self._disks[node].fail(fault.error, fault.rates)
        time.sleep(fault.seconds)
        return self._await_watched(f"{fault.name} on node {node}")

    def _revive(self, kind: str, victims: list[int]) -> None:
        (node,) = victims
        self._disks[node].heal()
        server = self.cluster.server(node)
        if not goes_on(server):
            end(server)
            server.start()


def test_failing_disk_of_one_node_loses_no_acknowledged_records(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = max(1, request.config.getoption("disk_faults") // ROUNDS_PER_CLUSTER)
    seed: int = request.config.getoption("seed")
    directory, library = tmp_path / "cluster", compiled(tmp_path)
    disks = {
        node: FailingDisk(library, directory / "data" / f"node-{node}", tmp_path / f"orders-{node}")
        for node in NODES
    }
    (tmp_path / "etcd").mkdir()
    etcd = Etcd(tmp_path / "etcd")
    try:
        address = f"etcd://{etcd.endpoints[0].removeprefix('http://')}/disks"
        machines = [disk.machine for disk in disks.values()]
        cluster = EtcdCluster(directory, address, machines=machines)
        crash_nodes(cluster, rounds, seed, KINDS, partial(DiskRun, disks=disks))
    finally:
        etcd.stop()
    failed = sum((Counter(disk.failed) for disk in disks.values()), Counter())
    print(f"figures: calls that failed: {counts(failed)}")


def counts(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items()))
