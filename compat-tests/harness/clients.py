"""Client processes, as the tests use them, and the abilities of each client library."""

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

# Timeout of a verb, in seconds. It is long because the first verb includes the client's start.
VERB_SECONDS = 180.0
# Retriable error codes: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
COORDINATOR_MOVES = frozenset({14, 15, 16})
UNKNOWN_TOPIC = frozenset({3})
# True in the soak run, which runs every test with the non-Python clients only.
OTHERS_ONLY = bool(os.environ.get("KBROKER_COMPAT_OTHERS"))
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Library:
    """One pinned client library, and its limitations regardless of the broker.

    A field that is False names an ability that the library lacks.
    """

    name: str
    # What runs the library: ("python", its adapter), ("go",), ("node", its adapter), ("rust",), or
    # ("java", its jars).
    driver: tuple[str, ...]
    # Takes long to build, so only the soak run includes it.
    soak_only: bool = False
    codecs: tuple[str, ...] = ALL_CODECS
    # "list" keeps pairs in order; "grouped" groups them by name; "map" keeps the last value per
    # name.
    headers: str = "list"
    null_headers: bool = True
    # Writes correct timestamps that are months away from the first one of the batch.
    far_timestamps: bool = True
    reads_null_headers: bool = True
    # Returns the log append time if the topic uses it.
    append_time: bool = True
    # Distinguishes empty keys, values and headers from null.
    reads_empty: bool = True
    # Lets the user choose partitions, acks and automatic topic creation.
    producer_options: bool = True
    # Supports read_committed.
    isolation: bool = True
    idempotent: bool = True
    # Retries InitProducerId if the response is lost.
    retries_init_producer_id: bool = True
    # The adapter supports TLS.
    tls: bool = True
    # Supports SCRAM without another library.
    scram: bool = True
    # Supports OAUTHBEARER without another library.
    oauth: bool = True
    transactional: bool = True
    # Can reuse a transactional ID that the broker already knows, and so fence the older producer.
    reuses_transactional_ids: bool = True
    groups: bool = True
    # Default assignor of its group members.
    strategy: str = "range"
    describes_strategy: bool = True
    # Retries a commit if the response is lost.
    retries_commits: bool = True
    # Delivers no record twice while members join and leave and all offsets are committed.
    exact_delivery: bool = True
    # Keeps its member ID when the broker restarts.
    keeps_member_id: bool = True
    # Continues to consume and commit after a broker restart without help from the application.
    recovers_membership: bool = True
    # Encodes its subscription so that other libraries can lead its group.
    mixes_in_groups: bool = True
    patterns: bool = True
    static: bool = True
    # Detects that another member took over its group.instance.id.
    detects_fencing: bool = True
    cooperative: bool = True
    auto_commit: bool = True
    # Can run the crash scripts of clients/driver.py.
    crash_scripts: bool = True
    # Maximum age of the metadata that it returns, in seconds.
    cache_seconds: float = 0.0
    # Describes topics, brokers and groups. If False: creates, deletes and lists topics only.
    admin: bool = True
    # Can set configs of a new topic.
    configs: bool = True
    alters_configs: bool = True
    # Altering replaces all configs of a topic (AlterConfigs) instead of the named ones only.
    replaces_configs: bool = False
    deletes_groups: bool = True
    deletes_offsets: bool = False
    deletes_records: bool = True

    def command(self, bootstrap: str) -> list[str]:
        """Return the command line of the driver.

        Raises:
            EnvironmentMissing: The library is not installed.
        """
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
        detects_fencing=False,
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
        detects_fencing=False,
        cooperative=False,
        replaces_configs=True,
        deletes_groups=False,
    ),
)

_OTHER_CLIENTS = (
    Library(
        "franz-go",
        ("go",),
        crash_scripts=False,
        retries_init_producer_id=False,
        keeps_member_id=False,
        deletes_offsets=True,
    ),
    # sarama rebalances cooperatively, but does not report revoked partitions.
    Library(
        "sarama",
        ("go",),
        scram=False,
        crash_scripts=False,
        keeps_member_id=False,
        patterns=False,
        cooperative=False,
        deletes_offsets=True,
    ),
    Library(
        "kafka-go",
        ("go",),
        scram=False,
        oauth=False,
        crash_scripts=False,
        describes_strategy=False,
        reads_empty=False,
        append_time=False,
        retries_commits=False,
        recovers_membership=False,
        mixes_in_groups=False,
        cache_seconds=2.0,
        idempotent=False,
        transactional=False,
        patterns=False,
        static=False,
        detects_fencing=False,
        cooperative=False,
        auto_commit=False,
        deletes_offsets=True,
        deletes_records=False,
    ),
    Library(
        "kafkajs",
        ("node", "kafkajs"),
        crash_scripts=False,
        headers="grouped",
        null_headers=False,
        strategy="RoundRobinAssigner",
        keeps_member_id=False,
        retries_init_producer_id=False,
        replaces_configs=True,
        patterns=False,
        static=False,
        detects_fencing=False,
        cooperative=False,
    ),
    Library(
        "platformatic",
        ("node", "platformatic"),
        crash_scripts=False,
        reuses_transactional_ids=False,
        strategy="roundrobin",
        recovers_membership=False,
        deletes_offsets=True,
        far_timestamps=False,
        append_time=False,
        detects_fencing=False,
        cooperative=False,
        exact_delivery=False,
        patterns=False,
    ),
    Library(
        "rskafka",
        ("rust",),
        tls=False,
        scram=False,
        oauth=False,
        soak_only=True,
        crash_scripts=False,
        headers="map",
        null_headers=False,
        reads_null_headers=False,
        producer_options=False,
        isolation=False,
        groups=False,
        idempotent=False,
        transactional=False,
        admin=False,
        configs=False,
        alters_configs=False,
    ),
)

OTHER_CLIENTS = tuple(one for one in _OTHER_CLIENTS if OTHERS_ONLY or not one.soak_only)
# Each uses one of the two transaction protocols. Other tests use Kafka's tools as Java clients.
JAVA_CLIENTS = (
    Library("java-3.9", ("java", "kafka-3.9")),
    Library("java-4.4", ("java", "kafka-4.4")),
)
LIBRARIES = {one.name: one for one in PYTHON_CLIENTS + OTHER_CLIENTS}
# All libraries that a process can run.
WORKERS = {**LIBRARIES, **{one.name: one for one in JAVA_CLIENTS}}


class ClientError(Exception):
    """A verb failed in the client; `code` is Kafka's error code or None."""

    def __init__(self, verb: str, error: dict[str, Any], stderr: str) -> None:
        super().__init__(
            f"{verb}: {error['type']}({error['code']}): {error['message']}\n"
            f"{error['trace']}\n--- client stderr ---\n{stderr}"
        )
        self.code: int | None = error["code"]
        self.kind: str = error["type"]
        self.message: str = error["message"]


class ClientDied(Exception):
    """The process ended, or did not respond in time."""


class ScriptProcess:
    """A process that executes verbs, with requests and responses as NDJSON.

    It runs clients/driver.py, spark/driver.py or a program of another language.

    Args:
        name: Name in messages.
        command: Command line to run.
        log: File for its stderr.
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
        """Execute a verb and return its result.

        Raises:
            ClientError: The verb failed.
            ClientDied: The process ended, or did not respond in time.
        """
        self.send(verb, **arguments)
        return self.receive(verb, seconds_allowed)

    def send(self, verb: str, **arguments: Any) -> None:
        """Send a verb without waiting for the result."""
        assert self._process.stdin is not None
        line = json.dumps({"verb": verb, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientDied(f"{self.name} is gone\n{self.stderr_tail()}") from None

    def receive(self, verb: str = "answer", seconds: float = VERB_SECONDS) -> Any:
        """Return the result of a verb that was sent before."""
        answer = json.loads(self._line(verb, seconds))
        if "error" in answer:
            raise ClientError(verb, answer["error"], self.stderr_tail())
        return answer["result"]

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._release()

    def wait_for_crash(self, seconds: float = VERB_SECONDS) -> int:
        """Wait until the process ends by itself and return its exit status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """Close stdin so that the process ends, and kill it if it does not."""
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
        """Return the last lines of stderr, without those about connections."""
        logged = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in logged if "onnect" not in line][-lines:])

    def _stacks(self) -> str:
        """Return the stack traces of all threads (clients/driver.py dumps them on SIGUSR1)."""
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
    """One process with one client library. `bootstrap` is "host:port"."""

    def __init__(self, library: Library, bootstrap: str, log: Path) -> None:
        super().__init__(library.name, library.command(bootstrap), log)

    def admin(self, call: str, **arguments: Any) -> Any:
        """Execute an admin call of base.Client."""
        return self("admin", call=call, **arguments)


def eventually(
    observe: Callable[[], Any],
    holds: Callable[[Any], bool],
    what: str,
    seconds: float = 30.0,
    not_yet: frozenset[int | None] = COORDINATOR_MOVES,
) -> Any:
    """Poll until a condition holds, and return the value that fulfilled it.

    Args:
        observe: Returns the current value.
        holds: Returns True if the value is as expected.
        what: Name of the value in the failure message.
        seconds: How long to poll.
        not_yet: Error codes to retry on. Other errors are raised.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen = observe()
            if holds(seen):
                return seen
        except ClientError as error:
            if error.code not in not_yet:
                raise
            seen = error
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s, last seen {seen}"
        time.sleep(0.1)
