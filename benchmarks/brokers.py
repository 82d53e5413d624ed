"""The brokers that are compared, as processes whose time and memory can be read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.ports import free_ports

from .rows import CONNECTIONS

ROOT = Path(__file__).resolve().parent.parent
KFAKE = ROOT / ".work/kfake"
"""The program, once it is compiled."""
HERE = ("--host", "127.0.0.1")
START_SECONDS = 60
STOP_SECONDS = 30
LISTENER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
"""
LOG4J = """\
<Configuration status="WARN"><Appenders><Console name="out" target="SYSTEM_ERR"/></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
METADATA_REQUEST = struct.pack(">ihhih9si", 23, 3, 1, 7, 9, b"benchmark", 0)
"""Metadata version 1 for no topics."""
SHOWN_CHARACTERS = 4000
"""How much of what a failed command said is shown, from its end."""


class BenchmarkFailed(Exception):
    """A broker or a client did not do its part; the message says which."""


class RowRefused(BenchmarkFailed):
    """A broker does not do what a row asks of it: it goes on without that row."""


def output(
    command: Sequence[str],
    what: str,
    *,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    failure: type[BenchmarkFailed] = BenchmarkFailed,
) -> str:
    """What a command prints.

    Parameters: `what` it is for, which begins the message of a failure; `environment` variables
    beside those of this process; `seconds` that it may take at most.

    Raises `failure` where the command ends with another status than 0, with the end of what it said.
    """
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise failure(f"{what} failed:\n{(done.stdout + done.stderr)[-SHOWN_CHARACTERS:]}")
    return done.stdout


def kafka_jars() -> Path:
    """The directory with Kafka's jars: KBROKER_KAFKA_JARS, else what the compatibility tests made."""
    directory = Path(os.environ.get("KBROKER_KAFKA_JARS") or ROOT / ".work/compat/kafka-4.3/lib")
    if not any(directory.glob("kafka-server-4*.jar")):
        raise BenchmarkFailed(
            f"there is no Kafka 4 in {directory}: run 'make -C compat-tests kafka-4.3', or set "
            "KBROKER_KAFKA_JARS to a directory with the jars of org.apache.kafka:kafka_2.13:4.3.0 "
            "and kafka-tools"
        )
    return directory


class Broker:
    """A running broker, or several nodes of one cluster. Call `stop` at the end.

    `durable` means that an acknowledged record was synced to the disk; `settings` are properties
    besides those that every run needs. It is run in `root`, where Python finds kbroker.
    `start_seconds` is the time from exec to the first answer to Metadata that names all nodes.
    """

    name: str
    nodes = 1
    client: Mapping[str, str] = MappingProxyType({})
    """What librdkafka is told besides the address."""
    root = ROOT

    def __init__(
        self, directory: Path, *, durable: bool, settings: Mapping[str, str] | None = None
    ) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.durable = durable
        self.settings = settings or {}
        first = free_ports(self.nodes)
        self.ports = range(first, first + self.nodes)
        self._command_lines = self._commands()
        self._log = (directory / "broker.log").open("wb")
        self.start()

    def start(self) -> None:
        """Start the processes, and measure how long that takes."""
        began = time.perf_counter()
        self._processes = [self._launch(command) for command in self._command_lines]
        self._wait_for_metadata()
        self.start_seconds = time.perf_counter() - began

    def _commands(self) -> list[list[str]]:
        """The command line of each process."""
        raise NotImplementedError

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=_as_installed(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def process_ids(self) -> list[int]:
        """Those of the broker, one for each node."""
        return [process.pid for process in self._processes]

    def cpu_seconds(self) -> float:
        """Processor time of all threads so far; 0.0 where the system does not tell."""
        return sum(cpu_seconds_of(process.pid) for process in self._processes)

    def resident_bytes(self) -> int:
        """Memory that the processes hold now; 0 where the system does not tell."""
        return sum(resident_bytes_of(process.pid) for process in self._processes)

    def stop(self) -> None:
        """Stop gracefully and remove the data."""
        self.end()
        self._log.close()
        shutil.rmtree(self.directory)

    def end(self) -> None:
        """Stop gracefully; `start` goes on with the same data."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _wait_for_metadata(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while any(nodes_known(port) < self.nodes for port in self.ports):
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                for process in self._processes:
                    process.kill()
                log = (self.directory / "broker.log").read_text(errors="replace")
                raise BenchmarkFailed(f"{self.name} did not start:\n{log[-4000:]}")
            time.sleep(0.005)


def cpu_seconds_of(pid: int) -> float:
    """Processor time of all threads of a process so far; 0.0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """Memory that a process holds now; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Kbroker(Broker):
    """`kbroker serve` with a data directory."""

    name = "kbroker"

    def _commands(self) -> list[list[str]]:
        return [self._command(*HERE, "--port", str(self.ports[0]))]

    def _command(self, *options: str, data: Path | None = None) -> list[str]:
        return [
            *(sys.executable, "-m", "kbroker", "serve", *options),
            *("--data-dir", str(data or self.directory / "data")),
            *("-o", f"flush.policy={'fsync' if self.durable else 'os'}"),
            *("-o", f"max.connections.per.ip={2 * max(CONNECTIONS)}"),  # all come from here
            *(part for name, value in self.settings.items() for part in ("-o", f"{name}={value}")),
        ]


class Kafka(Broker):
    """Apache Kafka in KRaft mode, each node one process, with the heap of its own start script."""

    name = "Kafka"
    heap = "1G"

    def _commands(self) -> list[list[str]]:
        log4j = self.directory / "log4j2.xml"
        log4j.write_text(LOG4J)
        java = ["java", f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{kafka_jars()}/*"]
        storage = [*java, "kafka.tools.StorageTool"]
        cluster_id = subprocess.check_output([*storage, "random-uuid"], text=True).strip()
        heap = [f"-Xms{self.heap}", f"-Xmx{self.heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        commands = []
        for properties, options in self._formats():
            form = ["format", "-t", cluster_id, "-c", str(properties), *options]
            subprocess.check_output([*storage, *form])
            commands.append([*java[:1], *heap, *java[1:], "kafka.Kafka", str(properties)])
        return commands

    def _formats(self) -> list[tuple[Path, list[str]]]:
        """The properties file of each node, and how its directory is formatted."""
        values = LISTENER_PROPERTIES.format(
            port=self.ports[0], controller=free_port(), data=self.directory / "data"
        )
        return [(self._write_properties("server", values), ["--standalone"])]

    def _write_properties(self, name: str, text: str) -> Path:
        if self.durable:
            text += "log.flush.interval.messages=1\n"
        text += "".join(f"{name}={value}\n" for name, value in self.settings.items())
        path = self.directory / f"{name}.properties"
        path.write_text(text)
        return path


class Kfake(Broker):
    """franz-go's fake cluster with a data directory, in a process of its own; see `build_kfake`."""

    name = "kfake"

    def _commands(self) -> list[list[str]]:
        sync = ["sync"] if self.durable else []
        return [[str(KFAKE), str(self.ports[0]), str(self.directory / "data"), *sync]]


def build_kfake() -> None:
    """Compile kfake's program. Raises BenchmarkFailed where that does not work, or Go is missing."""
    KFAKE.parent.mkdir(exist_ok=True)
    command = ["go", "build", "-o", str(KFAKE), "."]
    source = Path(__file__).parent / "kfake"
    try:
        output(command, "kfake: to compile it", directory=source)
    except FileNotFoundError:
        raise BenchmarkFailed(
            "kfake needs Go: install it, or leave kfake out with --brokers"
        ) from None


def _as_installed() -> dict[str, str]:
    """The environment, but compiled modules are kept, as pip leaves them."""
    return {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def commit() -> str:
    """What is measured; "-dirty" when that is not all: pages that the commands write do not count."""
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]
    name, others = (
        subprocess.check_output(words, cwd=ROOT, text=True).strip() for words in (head, changed)
    )
    return f"{name}-dirty" if others else name


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def nodes_known(port: int) -> int:
    """How many nodes are named by a broker on this port that answers Metadata."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
            stream.sendall(METADATA_REQUEST)
            answer = stream.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            _correlation_id, brokers = struct.unpack_from(">ii", answer.read(size))
            return int(brokers)
    except (OSError, struct.error):
        return 0
