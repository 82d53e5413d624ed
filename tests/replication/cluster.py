"""A cluster of three nodes in one process with disks: its state, crashes and files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from kbroker.cli.control import Control, ask
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import iter_headers
from kbroker.storage.naming import LOG, META_PROPERTIES, parse_file_name

from ..kill.history import Batch, Place
from ..kill.server import KEPT, Address, Server
from ..machine import LOCAL
from ..ports import free_ports
from ..wire import LATEST, ConnectionClosed, Topic, connected, list_offset, metadata, request

# A topic with min.insync.replicas=1. The topic KEPT has 2.
SINGLE = "single"
PARTITIONS = {KEPT: 3, SINGLE: 2}
PLACES: list[Place] = [(topic, index) for topic, n in PARTITIONS.items() for index in range(n)]
NODES = (1, 2, 3)
WAIT_SECONDS_MAX = 60.0
# Maximum seconds until a node without data has copied all records under load.
IN_SYNC_SECONDS_MAX = 300.0
# Number of last log lines that a failed wait prints per process.
LOGGED_LINES = 40

SETTINGS = (
    "flush.policy=fsync",
    "default.replication.factor=3",
    "offsets.topic.num.partitions=4",
    # Rounds move leaders explicitly.
    "auto.leader.rebalance.enable=false",
)
TOPICS = (
    f"{KEPT}:{PARTITIONS[KEPT]}:min.insync.replicas=2,internal.segment.bytes=65536",
    f"{SINGLE}:{PARTITIONS[SINGLE]}:min.insync.replicas=1",
)


class State(NamedTuple):
    """State of one partition in the metadata."""

    leader: int
    epoch: int
    in_sync: frozenset[int]


NO_LEADER = State(-1, -1, frozenset())


class Cluster(Server):
    """`kbroker serve --nodes 3`, with commands to crash, stop and start single nodes."""

    def __init__(
        self,
        directory: Path,
        settings: Sequence[str] = SETTINGS,
        topics: Sequence[str] = TOPICS,
        names: Collection[str] = tuple(PARTITIONS),
    ) -> None:
        super().__init__(directory, settings, topics)
        self._names = names
        self.port = free_ports(len(NODES))
        self.addresses: list[Address] = [(LOCAL.address, self.port + n) for n in range(len(NODES))]
        port, token = free_ports(1), str(directory / "control.token")
        self._control = Control(f"127.0.0.1:{port}", token)
        self._lost: list[str] = []
        control_options = ("--control-port", str(port), "--control-token-file", token)
        self._options = ("--nodes", str(len(NODES)), *control_options)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    # -- commands

    def crash(self, node: int) -> None:
        """Crash the node; its unsynced data may be lost."""
        self._send_command("crash_node", node)

    def stop(self, node: int) -> None:
        """Stop the node with a controlled shutdown."""
        self._send_command("stop_node", node)

    def revive(self, node: int) -> None:
        """Start a stopped or crashed node."""
        self._send_command("start_node", node)

    def _send_command(self, verb: str, node: int) -> None:
        ask(self._control, do=verb, node=node)

    def lose_directory(self, node: int) -> None:
        """Replace a stopped node's disk by an empty one and declare the old directory lost."""
        directory = self.data / f"node-{node}"
        properties = (directory / META_PROPERTIES).read_text()
        (directory_id,) = re.findall(r"^directory\.id=(.+)$", properties, re.MULTILINE)
        self._lost.append(directory_id)
        self._settings = (*SETTINGS, f"log.dirs.discarded.ids={','.join(self._lost)}")
        shutil.rmtree(directory)
        directory.mkdir()  # the new disk

    # -- state of the cluster

    def partition_states(self) -> dict[Place, State]:
        """Return all partitions from the first node that responds, or an empty dictionary."""
        response = self._ask_any(partial(describe, names=self._names))
        return response or {}

    def await_leader(self, place: Place) -> Address:
        """Wait until a partition's leader serves the partition, and return its address."""
        found: list[Address] = []

        def ask() -> bool:
            leader = self.partition_states().get(place, NO_LEADER).leader
            if leader in NODES and self._ask(leader, partial(_end, place=place)) is not None:
                found.append(self.addresses[leader - 1])
            return bool(found)

        wait_until(ask, lambda: f"{place} has no leader that responds: {self.partition_states()}")
        return found[0]

    def high_watermark(self, place: Place) -> int:
        """Return the high watermark of a partition from its leader."""
        end = trio.run(_end, self.await_leader(place), place)
        assert end is not None
        return end

    def move_leaders_back(self) -> None:
        """Elect the preferred leader of each partition where possible."""
        self._ask_any(_elect_preferred)

    def await_in_sync(self, places: Collection[Place] = PLACES) -> None:
        """Wait until all replicas of the partitions are in sync and each partition has a leader."""

        def are_in_sync() -> bool:
            states = self.partition_states()
            return all(
                place in states
                and states[place].in_sync == frozenset(NODES)
                and states[place].leader in NODES
                for place in places
            )

        wait_until(
            are_in_sync,
            lambda: f"not in sync: {self.partition_states()}{self._views_and_logs()}",
            IN_SYNC_SECONDS_MAX,
        )

    @property
    def log_paths(self) -> list[Path]:
        """Return the log files of all processes."""
        return [self.log_path]

    def _views_and_logs(self) -> str:
        """Return each node's view of the partitions and the last log lines of each process."""
        views = (
            f"\nnode {node}: {self._ask(node, partial(describe, names=self._names))}"
            for node in NODES
        )
        logs = (f"\n{path.name}:\n{_last_lines(path)}" for path in self.log_paths)
        return "".join((*views, *logs))

    def _ask_any(self, ask: Callable[[Address], Any]) -> Any:
        """Return the result of the first node that responds, or None."""
        responses = (self._ask(node, ask) for node in NODES)
        return next((response for response in responses if response is not None), None)

    def _ask(self, node: int, ask: Callable[[Address], Any]) -> Any:
        """Return the result of a function of a node's address, or None if the node is down."""
        try:
            return trio.run(ask, self.addresses[node - 1])
        except (OSError, ConnectionClosed, trio.BrokenResourceError, trio.TooSlowError):
            return None

    # -- files

    def dump(self, place: Place, begin: int) -> dict[int, list[Batch]]:
        """Return the batches of each replica from the batch that contains offset `begin`."""
        return {node: list(batches(self.replica(node, place), begin)) for node in NODES}

    def replica(self, node: int, place: Place) -> Path:
        """Return the directory of a replica."""
        return self.data / f"node-{node}" / f"{place[0]}-{place[1]}"


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOGGED_LINES:])


def batches(directory: Path, begin: int) -> Iterable[Batch]:
    """Return the batches of a partition's directory with a last offset of at least `begin`."""
    names = os.listdir(directory) if directory.exists() else []
    parsed = sorted(name for name in filter(None, map(parse_file_name, names)) if name[1] == LOG)
    bases = [base for base, _ in parsed]
    for base, after in zip(bases, [*bases[1:], None], strict=True):
        if after is not None and after <= begin:
            continue
        data = (directory / f"{base:020d}{LOG}").read_bytes()
        for position, header in iter_headers(data):
            last = header.base_offset + header.last_offset_delta
            if last >= begin:
                digest = hashlib.blake2b(data[position : position + header.size], digest_size=12)
                yield Batch(header.base_offset, last, digest.digest())


async def describe(address: Address, names: Collection[str]) -> dict[Place, State]:
    with trio.fail_after(5):
        async with connected(address) as wire:
            response = await metadata(wire, names)
    return {
        (topic.name, row.partition_index): State(
            row.leader_id, row.leader_epoch, frozenset(row.isr_nodes)
        )
        for topic in response.topics
        for row in topic.partitions
    }


async def _end(address: Address, place: Place) -> int | None:
    """Return the high watermark of a partition from a node, or None on error."""
    with trio.fail_after(5):
        async with connected(address) as wire:
            row = await list_offset(wire, Topic(place[0]), LATEST, partition=place[1])
    return int(row.offset) if row.error_code == 0 else None


async def _elect_preferred(address: Address) -> bool:
    ask = request(ApiKey.ELECT_LEADERS, election_type=0, timeout_ms=5000)
    ask.topic_partitions = None
    with trio.fail_after(10):
        async with connected(address) as wire:
            response = await wire.ask(ApiKey.ELECT_LEADERS, 2, ask)
    assert response.error_code == 0, response
    return True


def wait_until(
    condition: Callable[[], object],
    description: Callable[[], str],
    seconds: float = WAIT_SECONDS_MAX,
    pause: float = 0.02,
) -> None:
    """Wait until `condition()` is true, or fail with `description()` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, description()
        time.sleep(pause)
