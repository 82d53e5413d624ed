"""The bank: transactional producers, transformers and a reader, and the faults injected into them.

Each round ends with a fault while a transaction is open. A round in which no transaction was
open does not count.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest

from ..waiting import WAIT_SECONDS, wait_until
from ..wire import connected
from .client import BRIEF, BRIEF_TIMEOUT_MS, FATAL, PARTITIONS, SESSION_TIMEOUT_MS, Reader
from .history import BROKER, Event, Operation, Phase, Recorder, from_json, load

ROOT = Path(__file__).parents[2]
TOPICS = tuple(
    f"{topic}:{count}:internal.segment.bytes=32768" for topic, count in PARTITIONS.items()
)
SETTINGS = (
    "flush.policy=fsync",
    "log.roll.ms=3000",
    "log.cleaner.backoff.ms=1000",
    "group.min.session.timeout.ms=500",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
)
CLIENTS = (
    "transformer-0",
    "transformer2-0",
    "producer-0",
    "producer-1",
    "producer2-0",
    "reader-0",
)
COMMITS_PER_ROUND = 20
# Probability that the broker is killed a second time soon after its restart.
KILLED_TWICE = 0.3
# Probability that a client is paused after all its records are acknowledged, before it commits.
AT_THE_END = 0.7
ZOMBIE_SECONDS = 5.0
OUTLAST_SECONDS = BRIEF_TIMEOUT_MS / 1000 + 0.5
STALL_SECONDS = SESSION_TIMEOUT_MS / 1000 + 1.5


class Server(Protocol):
    """The broker under test."""

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap addresses, separated by commas."""
        ...

    def start(self) -> object: ...
    def kill(self) -> None: ...


class Child:
    """One process of a client; `events` are those that `read_events` has read so far."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        self.name = name
        self.life = life
        self.path = directory / f"{self.process}.jsonl"
        self.path.touch()
        self.events: list[Event] = []
        self._done: Counter[Operation] = Counter()
        self._seen = self.path.open()
        self._part = ""
        command = [sys.executable, "-m", f"{__package__}.client", name, str(life), bootstrap]
        with (directory / f"{self.process}.log").open("wb") as log:
            self.running = subprocess.Popen(
                [*command, str(directory), str(seed)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def process(self) -> str:
        return f"{self.name}.{self.life}"

    def read_events(self) -> None:
        """Read the events written since the last call."""
        *lines, self._part = (self._part + self._seen.read()).split("\n")
        new = [from_json(line) for line in lines]
        self.events += new
        self._done.update(event.operation for event in new if event.phase is Phase.OK)

    @property
    def is_open(self) -> bool:
        """Return True if a transaction has a record and no response to its end."""
        self.read_events()
        for event in reversed(self.events):
            if event.operation in (Operation.COMMIT, Operation.ABORT):
                return event.phase is not Phase.OK
            if event.operation in (Operation.SEND, Operation.OFFSETS):
                return True
            if event.operation in (Operation.BEGIN, Operation.INIT):
                return False
        return False

    @property
    def is_settled(self) -> bool:
        """Return True if all records have a response and the end is not requested yet."""
        self.read_events()
        waiting = 0
        for event in reversed(self.events):
            if event.operation is not Operation.SEND:
                return waiting == 0 and event.operation is Operation.BEGIN
            waiting += 1 if event.phase is Phase.INVOKED else -1
        return False

    @property
    def is_ready(self) -> bool:
        """Return True if InitProducerId has succeeded."""
        return self.count(Operation.INIT) > 0

    def count(self, operation: Operation) -> int:
        """Return the number of successful operations of a kind."""
        self.read_events()
        return self._done[operation]

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self.running.poll() is None:
            self.running.kill()
            self.running.wait()
        self._seen.close()


class Bank:
    """A run of the bank.

    Args:
        server: The broker, started.
        directory: Where the histories are written.
        seed: Seed of the faults and of the clients' random numbers.
    """

    def __init__(self, server: Server, directory: Path, seed: int) -> None:
        self.server = server
        self.directory = directory
        self.random = random.Random(seed)
        self.seed = seed
        self._recorder = Recorder(directory / "nemesis.jsonl", "nemesis")
        self._lives: Counter[str] = Counter()
        self._children: dict[str, Child] = {}
        self._all: list[Child] = []
        self._protocol = 2
        for name in CLIENTS:
            self._start(name)

    # -- clients

    def _start(self, name: str) -> Child:
        self._lives[name] += 1
        child = Child(name, self._lives[name], self.server.bootstrap, self.directory, self.seed)
        self._children[name] = child
        self._all.append(child)
        return child

    def _clients_of(self, *kinds: str) -> list[Child]:
        return [child for name, child in self._children.items() if name.startswith(kinds)]

    def restart_fenced(self) -> None:
        """Restart clients that exited because the broker fenced them."""
        for name, child in list(self._children.items()):
            status = child.running.poll()
            if status is not None:
                assert status == FATAL, f"{child.process} ended with {status}"
                self._start(name)

    @property
    def commits(self) -> int:
        """Return the number of committed transactions."""
        return sum(child.count(Operation.COMMIT) for child in self._all)

    def _wait(self, condition: Callable[[], object], description: str) -> None:
        def holds_after_restarts() -> object:
            self.restart_fenced()
            return condition()

        wait_until(holds_after_restarts, description)

    # -- faults; each returns True if a transaction was open when it happened

    def round(self, fault: str) -> bool:
        """Let the clients work, then inject a fault. Returns True if the round counts."""
        self.await_commits()
        return self.inject(fault)

    def await_commits(self) -> None:
        """Let the clients commit some transactions, until all of them are ready."""
        before = self.commits
        self._wait(lambda: self.commits >= before + COMMITS_PER_ROUND, "commits")
        self._await_ready("producer", "transformer")

    def _await_ready(self, *kinds: str) -> None:
        """Wait until all clients of some kinds have initialised their transactional IDs."""
        self._wait(lambda: all(child.is_ready for child in self._clients_of(*kinds)), "all clients")

    def inject(self, fault: str) -> bool:
        """Inject a fault. Returns True if a transaction was open."""
        return FAULTS[fault](self)

    def kill_broker(self) -> bool:
        """Kill the broker and restart it, sometimes twice in quick succession."""
        time.sleep(self.random.uniform(0, 0.2))
        self._wait(self._is_any_open, "a transaction")
        self._kill_server()
        counts = self._is_any_open()
        self.server.start()
        if self.random.random() < KILLED_TWICE:
            time.sleep(self.random.uniform(0, 0.2))
            self._kill_server()
            self.server.start()
        return counts

    def _is_any_open(self) -> bool:
        return any(child.is_open for child in self._clients_of("producer", "transformer"))

    def _kill_server(self) -> None:
        self.server.kill()
        self._recorder.write(Operation.KILL, process=BROKER)

    def kill_producer(self) -> bool:
        return self.kill("producer")

    def kill_transformer(self) -> bool:
        return self.kill("transformer")

    def kill(self, kind: str) -> bool:
        """Kill a client, given by kind or name, and start its successor."""
        child = self._choose_open(kind)
        child.running.kill()
        child.running.wait()
        self._recorder.write(Operation.KILL, process=child.process)
        self._start(child.name)
        return child.is_open

    def replace_producer(self) -> bool:
        return self._replace("producer")

    def replace_transformer(self) -> bool:
        return self._replace("transformer")

    def _choose_open(self, *kinds: str) -> Child:
        """Return a random client of these kinds that has an open transaction."""
        open_clients: list[Child] = []

        def find() -> bool:
            open_clients[:] = [child for child in self._clients_of(*kinds) if child.is_open]
            return bool(open_clients)

        self._wait(find, f"a transaction of a {kinds[0]}")
        return self.random.choice(open_clients)

    def _pause(self, *kinds: str) -> Child:
        """Pause a client in a transaction, usually when only its commit or abort is missing."""
        at_the_end = self.random.random() < AT_THE_END
        while True:
            child = self._choose_open(*kinds)
            child.running.send_signal(signal.SIGSTOP)
            if child.is_settled if at_the_end else child.is_open:
                self._recorder.write(Operation.PAUSE, process=child.process)
                return child
            child.running.send_signal(signal.SIGCONT)

    def _replace(self, *kinds: str) -> bool:
        """Pause a client, start a successor with its transactional ID, and resume the client."""
        zombie = self._pause(*kinds)
        successor = self._start(zombie.name)
        self._wait(lambda: successor.is_ready, "a successor")
        if self.random.random() < 0.5:
            self._wait(lambda: successor.is_open, "a transaction of a successor")
        self._resume(zombie)
        try:
            zombie.running.wait(ZOMBIE_SECONDS)
        except subprocess.TimeoutExpired:
            zombie.running.kill()
            zombie.running.wait()
            self._recorder.write(Operation.KILL, process=zombie.process)
        return True

    def stall_transformer(self) -> bool:
        """Pause a member until the group has reassigned its partitions."""
        child = self._pause("transformer")
        time.sleep(STALL_SECONDS)
        self._resume(child)
        return True

    def outlast_producer(self) -> bool:
        """Pause a producer until its transaction times out and is aborted."""
        child = self._pause(*BRIEF)
        time.sleep(OUTLAST_SECONDS)
        self._resume(child)
        return True

    def switch_protocol(self) -> bool:
        """Change `transaction.version` between 2 and 1."""
        self._wait(self._is_any_open, "a transaction")
        self._protocol = 3 - self._protocol
        trio.run(finalize_protocol, self.server.bootstrap, self._protocol)
        return True

    def _resume(self, child: Child) -> None:
        self._recorder.write(Operation.RESUME, process=child.process)
        child.running.send_signal(signal.SIGCONT)

    # -- the end

    def finish(self) -> None:
        """Stop all clients after all inputs are transformed, and read everything.

        A new process must first end the transaction of its predecessor, so wait until it is ready.
        """
        self._await_ready("producer")
        self._stop("producer")
        reader = Reader("reader-last", 1, self.server.bootstrap, self.directory, self.seed)
        try:
            self._wait(reader.is_drained, "every input is transformed")
            self._await_ready("transformer")
            self._stop("transformer", "reader")
            reader.read_all()
        finally:
            reader.close()

    def read_all(self) -> None:
        """Read all partitions in their current state."""
        reader = Reader("reader-now", 1, self.server.bootstrap, self.directory, self.seed)
        try:
            reader.read_all()
        finally:
            reader.close()

    def history(self) -> list[Event]:
        """Return all events so far."""
        return load(sorted(self.directory.glob("*.jsonl")))

    def _stop(self, *kinds: str) -> None:
        """Stop all clients of some kinds with SIGTERM."""
        for child in self._clients_of(*kinds):
            child.running.terminate()
        for child in self._clients_of(*kinds):
            child.running.wait(WAIT_SECONDS)
            if child.running.returncode == FATAL:
                # It was fenced while it stopped: a successor ends its transaction.
                last = self._start(child.name)
                wait_until(lambda last=last: last.is_ready, "the last process")  # type: ignore[misc]
                last.running.terminate()
                last.running.wait(WAIT_SECONDS)
            del self._children[child.name]

    def close(self) -> None:
        """End all processes."""
        for child in self._all:
            child.close()
        self._recorder.close()


FAULTS: dict[str, Callable[[Bank], bool]] = {
    "kill broker": Bank.kill_broker,
    "kill producer": Bank.kill_producer,
    "kill transformer": Bank.kill_transformer,
    "replace producer": Bank.replace_producer,
    "replace transformer": Bank.replace_transformer,
    "stall transformer": Bank.stall_transformer,
    "outlast producer": Bank.outlast_producer,
    "switch protocol": Bank.switch_protocol,
}


async def finalize_protocol(bootstrap: str, level: int) -> None:
    """Set the level of `transaction.version`, as kafka-features does."""
    upgrade, downgrade = 1, 2
    row = UpdateFeaturesRequest.Feature(
        feature="transaction.version",
        max_version_level=level,
        upgrade_type=upgrade if level == 2 else downgrade,
    )
    async with connected(Endpoint.parse(bootstrap.split(",")[0])) as wire:
        ask = UpdateFeaturesRequest(feature_updates=[row])
        response = await wire.ask(ApiKey.UPDATE_FEATURES, 2, ask)
        assert response.error_code == 0, response


@contextmanager
def running_bank(server: Server, directory: Path, seed: int) -> Iterator[Bank]:
    """Run a bank; close all its clients at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    bank = Bank(server, directory, seed)
    try:
        yield bank
    finally:
        bank.close()
