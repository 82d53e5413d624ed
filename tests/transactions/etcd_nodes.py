"""The bank on three broker processes with etcd: brokers, etcd members and disks fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..cluster.etcd import Etcd
from ..processes.etcd_cluster import SESSION, SESSION_SECONDS, EtcdCluster
from . import bank
from .bank import TOPICS
from .client import PARTITIONS, PLACES
from .history import BROKER, Operation
from .nodes import COMMITS_WITHOUT, SETTINGS_OF_NODES, BankOfNodes

MEMBERS = (0, 1, 2)


def three_processes(directory: Path, etcd: Etcd) -> EtcdCluster:
    """Return three broker processes that keep their metadata in etcd."""
    members = ",".join(each.removeprefix("http://") for each in etcd.endpoints)
    settings = (*SETTINGS_OF_NODES, *SESSION)
    address = f"etcd://{members}/bank"
    return EtcdCluster(directory, address, settings, topics=TOPICS, names=tuple(PARTITIONS))


class BankOverEtcd(BankOfNodes):
    """A run on three broker processes with etcd; FAULTS lists its faults."""

    server: EtcdCluster
    needs_election = ("kill node", "pause node", "stop node")

    def __init__(self, server: EtcdCluster, etcd: Etcd, directory: Path, seed: int) -> None:
        self.etcd = etcd
        super().__init__(server, directory, seed)

    def inject(self, fault: str) -> bool:
        return FAULTS[fault](self)

    def kill_node(self) -> bool:
        return self._end_node(self.server.kill_node)

    def stop_node(self) -> bool:
        return self._end_node(self.server.stop)

    def pause_node(self) -> bool:
        """Pause a node until others lead; after resuming it briefly has stale metadata."""
        with self._stale_answers():
            return self._end_node(self.server.pause_node)

    def kill_node_and_member(self) -> bool:
        """Kill a node while a member of etcd is down."""
        member = self._member()
        self.etcd.kill(member)
        try:
            return self._end_node(self.server.kill_node)
        finally:
            self.etcd.restart(member)
            self.etcd.wait()

    def restart_member(self) -> bool:
        """Kill a member of etcd while transactions continue."""
        member = self._member()
        counts = self._is_open_when(self.etcd.kill, member)
        self._await_some_commits()
        self.etcd.restart(member)
        self.etcd.wait()
        return counts

    def restart_majority(self) -> bool:
        """Kill two members of etcd or all of them, and start them again."""
        members = self.random.sample(MEMBERS, self.random.choice([2, 3]))
        with self._stale_answers():
            for member in members[1:]:
                self.etcd.kill(member)
            counts = self._is_open_when(self.etcd.kill, members[0])
            time.sleep(self.random.uniform(0, 1.5) * SESSION_SECONDS)
            for member in members:
                self.etcd.restart(member)
            self.etcd.wait()
            self._await_some_commits()
        return counts

    def pause_member(self) -> bool:
        """Pause a member of etcd while transactions continue."""
        member = self._member()
        with ExitStack() as stack:
            stack.callback(self.etcd.resume, member)
            counts = self._is_open_when(self.etcd.pause, member)
            self._await_some_commits()
            time.sleep(self.random.uniform(0, 2) * SESSION_SECONDS)
        return counts

    def pause_etcd(self) -> bool:
        """Pause all members of etcd for up to 2.5 sessions of the nodes."""
        with self._stale_answers():
            with ExitStack() as stack:
                for member in MEMBERS[1:]:
                    self.etcd.pause(member)
                    stack.callback(self.etcd.resume, member)
                stack.callback(self.etcd.resume, MEMBERS[0])
                counts = self._is_open_when(self.etcd.pause, MEMBERS[0])
                time.sleep(self.random.uniform(0.2, 2.5) * SESSION_SECONDS)
            self._await_some_commits()
        return counts

    def replace_member(self) -> bool:
        """Lose the disk of a member of etcd; a new member takes its place."""
        counts = self._is_open_when(self.etcd.replace, self._member())
        self.etcd.wait()
        self._await_some_commits()
        return counts

    def _member(self) -> int:
        """Return a member of etcd, mostly its leader."""
        return self.random.choice([self.etcd.leader(), self.random.choice(MEMBERS)])

    def _is_open_when(self, fail: Callable[[int], None], member: int) -> bool:
        """Fail a member of etcd during transactions. Returns True if one was open."""
        self._wait(self._is_any_open, "a transaction")
        fail(member)
        return self._is_any_open()

    def _await_some_commits(self) -> None:
        before = self.commits
        self._wait(lambda: self.commits >= before + COMMITS_WITHOUT, "commits")

    @contextmanager
    def _stale_answers(self) -> Iterator[None]:
        """Expect stale responses of nodes until all replicas are in sync again."""
        self._recorder.write(Operation.PAUSE, process=BROKER)
        yield
        self.server.await_in_sync(PLACES)
        self._recorder.write(Operation.RESUME, process=BROKER)


FAULTS: dict[str, Callable[[BankOverEtcd], bool]] = {
    **bank.FAULTS,
    "kill node": BankOverEtcd.kill_node,
    "stop node": BankOverEtcd.stop_node,
    "pause node": BankOverEtcd.pause_node,
    "kill node and etcd member": BankOverEtcd.kill_node_and_member,
    "restart etcd member": BankOverEtcd.restart_member,
    "restart etcd majority": BankOverEtcd.restart_majority,
    "pause etcd member": BankOverEtcd.pause_member,
    "pause etcd": BankOverEtcd.pause_etcd,
    "replace etcd member": BankOverEtcd.replace_member,
}
ETCD_FAULTS = tuple(fault for fault in FAULTS if "etcd" in fault)
