"""Client processes as the tests see them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .java import command_line
from .places import CLIENTS, COMPAT, environment, environment_python

VERB_SECONDS = 180.0
"""Only for what hangs: the first verb also waits until the client has started."""
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""Loading, not available, not coordinator: an application asks again."""
UNKNOWN_TOPIC = frozenset({3})
OTHERS_ONLY = bool(os.environ.get("KBROKER_COMPAT_OTHERS"))
"""The soak part: every test with the clients that are not Python's, instead of the marked ones."""
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Library:
    """One pinned client and what it cannot do by itself (whatever the broker)."""

    name: str
    driver: tuple[str, ...]
    """What runs it: ("python", its adapter), ("go",), ("node", its adapter), ("rust",), or
    ("java", its jars)."""
    by_soak: bool = False
    """Takes long to build, so only the soak part runs it."""
    codecs: tuple[str, ...] = ALL_CODECS
    headers: str = "list"
    """A "list" of pairs; "grouped" by name (their order is lost); or a "map" (last one wins)."""
    null_headers: bool = True
    far_timestamps: bool = True
    """Writes times right that are months away from the first one of the batch."""
    reads_null_headers: bool = True
    append_time: bool = True
    """Hands out the broker's time where the topic says so."""
    reads_empty: bool = True
    """Tells an empty key, value or header from a null one."""
    chooses: bool = True
    """Chooses partitions, waits for as many acks as asked, has topics created."""
    isolation: bool = True
    """Reads committed records only, when told to."""
    idempotent: bool = True
    asks_again: bool = True
    """Asks again when the answer to its question for a producer id is lost."""
    tls: bool = True
    """Its adapter speaks TLS."""
    scram: bool = True
    """Logs in by SCRAM without another library."""
    oauth: bool = True
    """Logs in by a token without another library."""
    transactional: bool = True
    fences: bool = True
    """Takes over a transactional id that is known to the broker."""
    groups: bool = True
    strategy: str = "range"
    """What its members use when a test asks for nothing else."""
    describes_strategy: bool = True
    commits_again: bool = True
    """Commits again when the answer to a commit is lost."""
    exact: bool = True
    """No record comes twice when members join and leave and all positions are committed."""
    stays: bool = True
    """Goes on as the same member when the broker comes back."""
    survives: bool = True
    """Gets records, and commits them, when the broker comes back, with no help of its user."""
    mixes: bool = True
    """Its subscription can be read by other libraries that lead the group."""
    patterns: bool = True
    static: bool = True
    fencing: bool = True
    """Notices that another member took its instance id."""
    cooperative: bool = True
    auto_commit: bool = True
    scripts: bool = True
    """Runs the whole scripts that crash (clients/driver.py has them)."""
    cache_seconds: float = 0.0
    """How old the metadata may be that it answers with."""
    admin: bool = True
    """Describes topics, brokers and groups; False: creates, deletes and lists topics only."""
    configs: bool = True
    """Gives a new topic configs."""
    alters_configs: bool = True
    replaces_configs: bool = False
    """Altering sets all configs of a topic anew (AlterConfigs), not only the named ones."""
    deletes_groups: bool = True
    deletes_offsets: bool = False
    deletes_records: bool = True

    def command(self, bootstrap: str) -> list[str]:
        """The command line of its driver; raises EnvironmentMissing."""
        match self.driver:
            case ("python", adapter):
                python = str(environment_python(self.name))
                return [python, str(CLIENTS / "driver.py"), adapter, bootstrap]
            case ("node", adapter):
                directory = environment("node")
                return [str(directory / "node"), str(directory / "driver.mjs"), adapter, bootstrap]
            case ("java", jar_set):
                return command_line(jar_set, str(COMPAT / "java" / "Driver.java"), bootstrap)
            case _:
                (language,) = self.driver
                return [str(environment(language) / "driver"), self.name, bootstrap]


PYTHON_CLIENTS = (
    Library(
        "kafka-python-3",
        ("python", "kafka_python"),
        null_headers=False,
    ),
    Library(
        "kafka-python-2",
        ("python", "kafka_python"),
        static=False,
        fencing=False,
        cooperative=False,
        idempotent=False,
        transactional=False,
        null_headers=False,
        replaces_configs=True,
        deletes_records=False,
    ),
    Library("confluent-kafka", ("python", "confluent")),
    Library(
        "aiokafka",
        ("python", "aio"),
        fencing=False,
        cooperative=False,
        replaces_configs=True,
        deletes_groups=False,
    ),
)

_OTHER_CLIENTS = (
    Library(
        "franz-go", ("go",), scripts=False, asks_again=False, stays=False, deletes_offsets=True
    ),
    # sarama rebalances cooperatively, but does not tell what was revoked.
    Library(
        "sarama",
        ("go",),
        scram=False,
        scripts=False,
        stays=False,
        patterns=False,
        cooperative=False,
        deletes_offsets=True,
    ),
    Library(
        "kafka-go",
        ("go",),
        scram=False,
        oauth=False,
        scripts=False,
        describes_strategy=False,
        reads_empty=False,
        append_time=False,
        commits_again=False,
        survives=False,
        mixes=False,
        cache_seconds=2.0,
        idempotent=False,
        transactional=False,
        patterns=False,
        static=False,
        fencing=False,
        cooperative=False,
        auto_commit=False,
        deletes_offsets=True,
        deletes_records=False,
    ),
    Library(
        "kafkajs",
        ("node", "kafkajs"),
        scripts=False,
        headers="grouped",
        null_headers=False,
        strategy="RoundRobinAssigner",
        stays=False,
        asks_again=False,
        replaces_configs=True,
        patterns=False,
        static=False,
        fencing=False,
        cooperative=False,
    ),
    Library(
        "platformatic",
        ("node", "platformatic"),
        scripts=False,
        fences=False,
        strategy="roundrobin",
        survives=False,
        deletes_offsets=True,
        far_timestamps=False,
        append_time=False,
        fencing=False,
        cooperative=False,
        exact=False,
        patterns=False,
    ),
    Library(
        "rskafka",
        ("rust",),
        tls=False,
        scram=False,
        oauth=False,
        by_soak=True,
        scripts=False,
        headers="map",
        null_headers=False,
        reads_null_headers=False,
        chooses=False,
        isolation=False,
        groups=False,
        idempotent=False,
        transactional=False,
        admin=False,
        configs=False,
        alters_configs=False,
    ),
)

OTHER_CLIENTS = tuple(one for one in _OTHER_CLIENTS if OTHERS_ONLY or not one.by_soak)
# Each speaks one of the two protocols of transactions; the tools stand for Java elsewhere.
JAVA_CLIENTS = (
    Library("java-3.9", ("java", "kafka-3.9")),
    Library("java-4.3", ("java", "kafka-4.3")),
)
LIBRARIES = {one.name: one for one in PYTHON_CLIENTS + OTHER_CLIENTS}
WORKERS = {**LIBRARIES, **{one.name: one for one in JAVA_CLIENTS}}
"""All that a process can be made of."""


class ClientError(Exception):
    """A verb failed in the client; code is Kafka's error number or None."""

    def __init__(self, verb: str, error: dict[str, Any], stderr: str) -> None:
        super().__init__(
            f"{verb}: {error['type']}({error['code']}): {error['message']}\n"
            f"{error['trace']}\n--- client stderr ---\n{stderr}"
        )
        self.code: int | None = error["code"]
        self.kind: str = error["type"]
        self.message: str = error["message"]


class ClientDied(Exception):
    """The process ended, or did not answer in time."""


class ScriptProcess:
    """A process that answers verbs as JSON lines (clients/driver.py or spark/driver.py).

    name: for messages; command: what runs; log: where its stderr goes.
    """

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def __call__(
        self, verb: str, *, seconds_allowed: float = VERB_SECONDS, **arguments: Any
    ) -> Any:
        """Ask and wait; raises ClientError or ClientDied."""
        self.send(verb, **arguments)
        return self.receive(verb, seconds_allowed)

    def send(self, verb: str, **arguments: Any) -> None:
        """Ask without waiting."""
        assert self._process.stdin is not None
        line = json.dumps({"verb": verb, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientDied(f"{self.name} is gone\n{self.stderr_tail()}") from None

    def receive(self, verb: str = "answer", seconds: float = VERB_SECONDS) -> Any:
        """The answer to what was sent before."""
        answer = json.loads(self._line(verb, seconds))
        if "error" in answer:
            raise ClientError(verb, answer["error"], self.stderr_tail())
        return answer["result"]

    def kill(self) -> None:
        """SIGKILL: the application's machine lost its power."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._release()

    def wait_for_crash(self, seconds: float = VERB_SECONDS) -> int:
        """Wait until the process has ended by itself; returns its status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """End the process (stdin closed), by force if need be."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def stderr_tail(self, lines: int = 15) -> str:
        """The last lines of stderr; the many about refused connections left out."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in said if "onnect" not in line][-lines:])

    def _stacks(self) -> str:
        """What its threads are doing (clients/driver.py dumps them on SIGUSR1)."""
        if self.name in {one.name for one in PYTHON_CLIENTS}:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        return self.stderr_tail(60)

    def _line(self, verb: str, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ClientDied(
                    f"{self.name} did not answer {verb!r} within {seconds} s\n{self._stacks()}"
                )
            if self._selector.select(left):
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise ClientDied(f"{self.name} ended in {verb!r}\n{self.stderr_tail()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class ClientProcess(ScriptProcess):
    """One process with one client library; bootstrap: "host:port"."""

    def __init__(self, library: Library, bootstrap: str, log: Path) -> None:
        super().__init__(library.name, library.command(bootstrap), log)

    def admin(self, call: str, **arguments: Any) -> Any:
        """An admin call of base.Client."""
        return self("admin", call=call, **arguments)


def eventually(
    look: Callable[[], Any],
    holds: Callable[[Any], bool],
    what: str,
    seconds: float = 30.0,
    not_yet: frozenset[int | None] = COORDINATOR_MOVES,
) -> Any:
    """Look again and again until `holds`; fails with the last thing seen.

    Returns what was seen. seconds: how long to try. not_yet: errors that count as not holding;
    all others are raised.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen = look()
            if holds(seen):
                return seen
        except ClientError as error:
            if error.code not in not_yet:
                raise
            seen = error
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s, last seen {seen}"
        time.sleep(0.1)
