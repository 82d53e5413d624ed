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

SINGLE = "single"
"""A topic with min.insync.replicas=1; that of KEPT is 2."""
PARTITIONS = {KEPT: 3, SINGLE: 2}
PLACES: list[Place] = [(topic, index) for topic, n in PARTITIONS.items() for index in range(n)]
NODES = (1, 2, 3)
WAIT_SECONDS_MAX = 60.0
IN_SYNC_SECONDS_MAX = 300.0
"""A node whose disk was lost copies all that there is once more, beside all of the load."""
LOGGED_LINES = 40
"""Of each log, where something did not come about."""

SETTINGS = (
    "flush.policy=fsync",
    "default.replication.factor=3",
    "offsets.topic.num.partitions=4",
    # Leaders move when a round says so.
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


NOBODY = State(-1, -1, frozenset())


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
        orders = ("--control-port", str(port), "--control-token-file", token)
        self._options = ("--nodes", str(len(NODES)), *orders)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    # -- orders

    def crash(self, node: int) -> None:
        """Crash the node; its unsynced data may be lost."""
        self._order("crash_node", node)

    def stop(self, node: int) -> None:
        """Stop the node with a controlled shutdown."""
        self._order("stop_node", node)

    def revive(self, node: int) -> None:
        """Start a stopped or crashed node."""
        self._order("start_node", node)

    def _order(self, verb: str, node: int) -> None:
        ask(self._control, do=verb, node=node)

    def lose_directory(self, node: int) -> None:
        """While the process is dead: a node's disk is gone, and its owner says so."""
        directory = self.data / f"node-{node}"
        properties = (directory / META_PROPERTIES).read_text()
        (directory_id,) = re.findall(r"^directory\.id=(.+)$", properties, re.MULTILINE)
        self._lost.append(directory_id)
        self._settings = (*SETTINGS, f"log.dirs.discarded.ids={','.join(self._lost)}")
        shutil.rmtree(directory)
        directory.mkdir()  # the new disk

    # -- what the cluster says

    def look(self) -> dict[Place, State]:
        """Every partition, as a node says that answers; nothing when none does."""
        answer = self._ask_any(partial(describe, names=self._names))
        return answer or {}

    def await_leader(self, place: Place) -> Address:
        """The address of a partition's leader, once it says where the partition ends."""
        found: list[Address] = []

        def ask() -> bool:
            leader = self.look().get(place, NOBODY).leader
            if leader in NODES and self._ask(leader, partial(_end, place=place)) is not None:
                found.append(self.addresses[leader - 1])
            return bool(found)

        wait_until(ask, lambda: f"{place} has no leader that answers: {self.look()}")
        return found[0]

    def high_watermark(self, place: Place) -> int:
        """Where readers of uncommitted records find the end of a partition."""
        end = trio.run(_end, self.await_leader(place), place)
        assert end is not None
        return end

    def move_leaders_back(self) -> None:
        """Let the first replica of each partition lead it, where it can."""
        self._ask_any(_elect_preferred)

    def await_in_sync(self, places: Collection[Place] = PLACES) -> None:
        """Wait until all replicas of the partitions are in sync, and lead or follow."""

        def are_in_sync() -> bool:
            states = self.look()
            return all(
                place in states
                and states[place].in_sync == frozenset(NODES)
                and states[place].leader in NODES
                for place in places
            )

        wait_until(
            are_in_sync,
            lambda: f"not in sync: {self.look()}{self._all_told()}",
            IN_SYNC_SECONDS_MAX,
        )

    @property
    def log_paths(self) -> list[Path]:
        """The files with what the processes log."""
        return [self.log_path]

    def _all_told(self) -> str:
        """What each node says of the partitions, and what the processes have logged last."""
        views = (
            f"\nnode {node}: {self._ask(node, partial(describe, names=self._names))}"
            for node in NODES
        )
        logs = (f"\n{path.name}:\n{_last_lines(path)}" for path in self.log_paths)
        return "".join((*views, *logs))

    def _ask_any(self, ask: Callable[[Address], Any]) -> Any:
        """The answer of the first node that gives one; None when none does."""
        answers = (self._ask(node, ask) for node in NODES)
        return next((answer for answer in answers if answer is not None), None)

    def _ask(self, node: int, ask: Callable[[Address], Any]) -> Any:
        """What a function of the address of a node returns; None when the node does not answer."""
        try:
            return trio.run(ask, self.addresses[node - 1])
        except (OSError, ConnectionClosed, trio.BrokenResourceError, trio.TooSlowError):
            return None

    # -- files

    def dump(self, place: Place, begin: int) -> dict[int, list[Batch]]:
        """The batches in the segment files of each replica, from the one on that has `begin`."""
        return {node: list(batches(self.replica(node, place), begin)) for node in NODES}

    def replica(self, node: int, place: Place) -> Path:
        """The directory of a replica."""
        return self.data / f"node-{node}" / f"{place[0]}-{place[1]}"


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOGGED_LINES:])


def batches(directory: Path, begin: int) -> Iterable[Batch]:
    """The record batches of a partition's directory that end at an offset of `begin` or above."""
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
            answer = await metadata(wire, names)
    return {
        (topic.name, row.partition_index): State(
            row.leader_id, row.leader_epoch, frozenset(row.isr_nodes)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


async def _end(address: Address, place: Place) -> int | None:
    """What a node says is the end of a partition; None when it does not."""
    with trio.fail_after(5):
        async with connected(address) as wire:
            row = await list_offset(wire, Topic(place[0]), LATEST, partition=place[1])
    return int(row.offset) if row.error_code == 0 else None


async def _elect_preferred(address: Address) -> bool:
    ask = request(ApiKey.ELECT_LEADERS, election_type=0, timeout_ms=5000)
    ask.topic_partitions = None
    with trio.fail_after(10):
        async with connected(address) as wire:
            answer = await wire.ask(ApiKey.ELECT_LEADERS, 2, ask)
    assert answer.error_code == 0, answer
    return True


def wait_until(
    condition: Callable[[], object],
    what: Callable[[], str],
    seconds: float = WAIT_SECONDS_MAX,
    pause: float = 0.02,
) -> None:
    """Wait until `condition()` is true; fails with `what()`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(pause)
