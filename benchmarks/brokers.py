"""The compared brokers, as processes whose CPU time and memory can be read."""

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
# Path of the compiled program.
KFAKE = ROOT / ".work/kfake"
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
# Metadata request of version 1 for no topics.
METADATA_REQUEST = struct.pack(">ihhih9si", 23, 3, 1, 7, 9, b"benchmark", 0)
# Number of characters of a failed command's output to show, from its end.
SHOWN_CHARACTERS = 4000


class BenchmarkFailed(Exception):
    """A broker or a client has failed; the message says which."""


class RowUnsupported(BenchmarkFailed):
    """A broker does not support a row; the benchmark continues without that row."""


def output(
    command: Sequence[str],
    what: str,
    *,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    failure: type[BenchmarkFailed] = BenchmarkFailed,
) -> str:
    """Run a command and return its standard output.

    Args:
        command: The command line.
        what: Purpose of the command, for the error message.
        directory: Working directory.
        environment: Additional environment variables.
        seconds: Timeout in seconds.
        failure: Exception type to raise.

    Raises:
        BenchmarkFailed: The command failed; the message has the end of its output.
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
    """Return the directory of Kafka's jars: KBROKER_KAFKA_JARS, or that of the compatibility tests."""
    directory = Path(os.environ.get("KBROKER_KAFKA_JARS") or ROOT / ".work/compat/kafka-4.4/lib")
    if not any(directory.glob("kafka-server-4*.jar")):
        raise BenchmarkFailed(
            f"no Kafka 4 in {directory}; run 'make -C compat-tests environments', or set "
            "KBROKER_KAFKA_JARS to a directory with the jars of org.apache.kafka:kafka_2.13:4.4.0 "
            "and kafka-tools"
        )
    return directory


class Broker:
    """A running broker, or several nodes of one cluster. Call `stop` at the end.

    Attributes:
        client: Settings for librdkafka besides the address.
        root: Working directory, in which Python finds kbroker.
        durable: True if records are synced to disk before they are acknowledged.
        settings: Additional broker settings.
        start_seconds: Time from exec to the first Metadata response that lists all nodes.
    """

    name: str
    nodes = 1
    client: Mapping[str, str] = MappingProxyType({})
    root = ROOT

    def __init__(
        self, directory: Path, *, durable: bool, settings: Mapping[str, str] | None = None
    ) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.durable = durable
        self.settings = settings or {}
        self.ports = self._choose_ports()
        self._command_lines = self._commands()
        self._log = (directory / "broker.log").open("wb")
        self.start()

    def start(self) -> None:
        """Start the processes and measure the start-up time."""
        began = time.perf_counter()
        self._processes = [self._launch(command) for command in self._command_lines]
        self._wait_for_metadata()
        self.start_seconds = time.perf_counter() - began

    def _choose_ports(self) -> range:
        """Return free ports for the nodes."""
        first = free_ports(self.nodes)
        return range(first, first + self.nodes)

    def _commands(self) -> list[list[str]]:
        """Return the command line of each process."""
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
        """Process IDs of the nodes."""
        return [process.pid for process in self._processes]

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far, or 0.0 if unknown."""
        return sum(cpu_seconds_of(process.pid) for process in self._processes)

    def resident_bytes(self) -> int:
        """Return the resident memory of all processes, or 0 if unknown."""
        return sum(resident_bytes_of(process.pid) for process in self._processes)

    def stop(self) -> None:
        """Stop gracefully and delete the data."""
        self.shut_down()
        self._log.close()
        shutil.rmtree(self.directory)

    def shut_down(self) -> None:
        """Stop all processes gracefully and keep the data; `start` continues with it."""
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
    """Return the CPU time of a process so far, or 0.0 if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """Return the resident memory of a process, or 0 if unknown."""
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
            *(
                "-o",
                f"max.connections.per.ip={2 * max(CONNECTIONS)}",
            ),  # all clients of the benchmark connect from one address
            *(part for name, value in self.settings.items() for part in ("-o", f"{name}={value}")),
        ]


class Compiled(Kbroker):
    """kbroker in a copy of this checkout with compiled modules; see `tests.compiled.making`."""

    root = ROOT / ".work/compiled"


class Interpreted(Kbroker):
    """kbroker of this checkout beside `Compiled`."""

    name = "interpreted"


class Kafka(Broker):
    """Apache Kafka in KRaft mode, one process per node, with the heap of its own start script."""

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
        """Return the properties file of each node, and its format options."""
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
    """franz-go's fake cluster with a data directory, in its own process; see `build_kfake`."""

    name = "kfake"

    def _commands(self) -> list[list[str]]:
        sync = ["sync"] if self.durable else []
        return [[str(KFAKE), str(self.ports[0]), str(self.directory / "data"), *sync]]


def build_kfake() -> None:
    """Compile kfake.

    Raises:
        BenchmarkFailed: The compilation failed, or Go is missing.
    """
    KFAKE.parent.mkdir(exist_ok=True)
    command = ["go", "build", "-o", str(KFAKE), "."]
    source = Path(__file__).parent / "kfake"
    try:
        output(command, "kfake: compilation", directory=source)
    except FileNotFoundError:
        raise BenchmarkFailed(
            "kfake needs Go; install it, or exclude kfake with --brokers"
        ) from None


def _as_installed() -> dict[str, str]:
    """Return an environment in which compiled modules are cached, as in an installation."""
    return {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def commit() -> str:
    """Return the measured commit, with "-dirty" if files outside docs differ from it."""
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]
    name, others = (
        subprocess.check_output(words, cwd=ROOT, text=True).strip() for words in (head, changed)
    )
    return f"{name}-dirty" if others else name


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def nodes_known(port: int) -> int:
    """Return the number of nodes in a Metadata response, or 0 without a response."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
            stream.sendall(METADATA_REQUEST)
            answer = stream.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            _correlation_id, brokers = struct.unpack_from(">ii", answer.read(size))
            return int(brokers)
    except (OSError, struct.error):
        return 0
