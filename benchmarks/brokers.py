"""The two brokers that are compared, as processes whose time and memory can be read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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


class BenchmarkFailed(Exception):
    """A broker or a client did not do its part; the message says which."""


def kafka_jars() -> Path:
    """The folder with Kafka's jars: KBROKER_KAFKA_JARS, else what the compatibility tests made."""
    folder = Path(os.environ.get("KBROKER_KAFKA_JARS") or ROOT / ".work/compat/kafka-4.3/lib")
    if not any(folder.glob("kafka-server-4*.jar")):
        raise BenchmarkFailed(
            f"there is no Kafka 4 in {folder}: run 'make -C compat-tests kafka-4.3', or set "
            "KBROKER_KAFKA_JARS to a folder with the jars of org.apache.kafka:kafka_2.13:4.3.0 "
            "and kafka-tools"
        )
    return folder


class Broker:
    """A running broker. Call `stop` at the end.

    `durable` means that an acknowledged record was synced to the disk; `settings` are properties
    besides those that every run needs. `start_seconds` is the time
    from exec to the first answer to Metadata that names a broker.
    """

    name: str

    def __init__(
        self, folder: Path, *, durable: bool, settings: Mapping[str, str] | None = None
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.durable = durable
        self.settings = settings or {}
        self.port = free_port()
        command = self._command()
        self._log = (folder / "broker.log").open("wb")
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_as_installed(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._wait_for_metadata()
        self.start_seconds = time.perf_counter() - began

    def _command(self) -> list[str]:
        raise NotImplementedError

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor time of all threads so far; 0.0 where the system does not tell."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory that the process holds now; 0 where the system does not tell."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """Stop gracefully and remove the data."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder)

    def _wait_for_metadata(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers_metadata(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                log = (self.folder / "broker.log").read_text(errors="replace")
                raise BenchmarkFailed(f"{self.name} did not start:\n{log[-4000:]}")
            time.sleep(0.005)


class Kbroker(Broker):
    """`kbroker serve` with a data folder."""

    name = "kbroker"

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "kbroker", "serve", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--data-dir", str(self.folder / "data")),
            *("-o", f"flush.policy={'fsync' if self.durable else 'os'}"),
            *(part for name, value in self.settings.items() for part in ("-o", f"{name}={value}")),
        ]


class Kafka(Broker):
    """Apache Kafka in KRaft mode, one process, with the heap of its own start script."""

    name = "Kafka"

    def _command(self) -> list[str]:
        text = LISTENER_PROPERTIES.format(
            port=self.port, controller=free_port(), data=self.folder / "data"
        )
        if self.durable:
            text += "log.flush.interval.messages=1\n"
        text += "".join(f"{name}={value}\n" for name, value in self.settings.items())
        properties = self.folder / "server.properties"
        properties.write_text(text)
        log4j = self.folder / "log4j2.xml"
        log4j.write_text(LOG4J)
        java = ["java", f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{kafka_jars()}/*"]
        storage = [*java, "kafka.tools.StorageTool"]
        cluster_id = subprocess.check_output([*storage, "random-uuid"], text=True).strip()
        form = ["format", "-t", cluster_id, "-c", str(properties), "--standalone"]
        subprocess.check_output([*storage, *form])
        heap = ["-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [*java[:1], *heap, *java[1:], "kafka.Kafka", str(properties)]


def _as_installed() -> dict[str, str]:
    """The environment, but compiled modules are kept, as pip leaves them."""
    return {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers_metadata(port: int) -> bool:
    """Whether a broker on this port answers Metadata and knows itself as a member."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
            stream.sendall(METADATA_REQUEST)
            answer = stream.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            _correlation_id, brokers = struct.unpack_from(">ii", answer.read(size))
            return bool(brokers > 0)
    except (OSError, struct.error):
        return False
