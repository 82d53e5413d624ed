"""Broker processes under test: kbroker, or Apache Kafka as the reference.

Both have the same interface: start, stop (graceful), kill (SIGKILL), and start again on the same
port with the same data directory.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .java import java
from .places import COMPAT, ROOT, jars

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class BrokerFailed(Exception):
    """The broker did not start, or ended unexpectedly. The message contains the end of its log."""


# UDP sockets bound to the chosen port numbers. They reserve a port among test processes until this
# process ends; brokers use TCP only.
_taken: list[socket.socket] = []


def free_port() -> int:
    """Return a free TCP port, for brokers that cannot report the port they chose.

    The port is below the ephemeral port range, so no outgoing connection takes it while the broker
    is down.
    """
    while True:
        port = random.randrange(9500, 14_000)
        taken = socket.socket(type=socket.SOCK_DGRAM)
        try:
            taken.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            taken.close()
            continue
        _taken.append(taken)
        return port


class Broker:
    """One broker process on 127.0.0.1.

    Args:
        directory: Directory of its data, port file and log; created if missing.
        properties: Kafka's settings, for example {"group.min.session.timeout.ms": "1000"}.
        advertise: "host:port" that Metadata returns instead of the listener (for a proxy), or None.
        data_dirs: Number of log directories.
    """

    name = "abstract"
    # How long metadata may be outdated after a response, in seconds.
    settle_seconds = 0.0

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        advertise: str | None = None,
        data_dirs: int = 1,
    ) -> None:
        self.directory = directory
        self.properties = dict(properties or {})
        self.advertise = advertise
        self.data_dirs = [directory / f"data{number or ''}" for number in range(data_dirs)]
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        """host:port of the listener, regardless of `advertise`."""
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        """Directory of the partitions (the first one, if there are several)."""
        return self.data_dirs[0]

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the broker's log, for failure reports."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def start(self) -> None:
        """Start and wait until clients can connect.

        Raises:
            BrokerFailed: The broker ended, or was not ready in time.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        self._prepare()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until clients can connect.

        Raises:
            BrokerFailed: The broker ended, or was not ready in time.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                status = self._process.poll()
                self.kill()
                raise BrokerFailed(f"{self.name} not ready (exit {status})\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop gracefully with SIGTERM, and kill the broker if that takes too long.

        Raises:
            BrokerFailed: The broker did not end in time, or ended with an error.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"{self.name} did not stop on SIGTERM\n{self.log_tail()}") from None
        if status not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise BrokerFailed(f"{self.name} stopped with status {status}\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _prepare(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError


class KbrokerBroker(Broker):
    """`python -m kbroker serve`, which reports its port in a port file."""

    name = "kbroker"

    @property
    def _port_file(self) -> Path:
        return self.directory / "port"

    def _prepare(self) -> None:
        self._port_file.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        python = os.environ.get("KBROKER_PYTHON", sys.executable)
        command = [python, "-m", "kbroker", "serve", "--port", str(self.port)]
        command += ["--port-file", str(self._port_file)]
        command += ["-o", f"log.dirs={','.join(map(str, self.data_dirs))}"]
        command += ["--exit-with-parent"]
        for key, value in self.properties.items():
            command += ["-o", f"{key}={value}"]
        if self.advertise is not None:
            command += ["--advertise", self.advertise]
        return command

    def _is_ready(self) -> bool:
        if not self._port_file.exists():
            return False
        self.port = int(self._port_file.read_text().strip().rpartition(":")[2])
        return True


class ApacheBroker(Broker):
    """Apache Kafka 4.4 in combined mode, formatted on the first start."""

    name = "apache"
    settle_seconds = 10.0
    # Ports of the client listener and of the controller listener; 0 chooses a free port.
    listener_port = controller_port = 0

    def _prepare(self) -> None:
        if self.port:
            return
        self.port = self.listener_port or free_port()
        controller = self.controller_port or free_port()
        for each in self.data_dirs:
            shutil.rmtree(each, ignore_errors=True)
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            **self._quorum(controller),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.advertise or self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(map(str, self.data_dirs)),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.properties,
        }
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (self.directory / "server.properties").write_text(text)
        config = str(self.directory / "server.properties")
        tool = "kafka.tools.StorageTool"
        java("kafka-4.4", tool, "format", "-t", self.cluster_id, "-c", config, *self.format_options)

    cluster_id = "kBrokerCompatTests0001"
    format_options = ("--standalone",)

    def _quorum(self, controller: int) -> dict[str, str]:
        """Return the settings of the metadata quorum, here one that can grow."""
        return {"controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}"}

    def _command(self) -> list[str]:
        log4j = COMPAT / "java" / "log4j2.properties"
        return [
            *("java", "-Xms256m", "-Xmx768m", "-XX:+UseG1GC"),
            f"-Dlog4j2.configurationFile={log4j}",
            *("-cp", jars("kafka-4.4"), "kafka.Kafka", str(self.directory / "server.properties")),
        ]

    def _is_ready(self) -> bool:
        """Return True if all listeners accept connections (Kafka opens them one by one)."""
        given = re.findall(r"127\.0\.0\.1:(\d+)", self.properties.get("listeners", ""))
        try:
            for port in {self.port, *map(int, given)}:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True


class FixedQuorumBroker(ApacheBroker):
    """Apache Kafka with a static metadata quorum (`controller.quorum.voters`)."""

    format_options = ()

    def _quorum(self, controller: int) -> dict[str, str]:
        return {"controller.quorum.voters": f"1@127.0.0.1:{controller}"}


BROKERS: Mapping[str, type[Broker]] = {"kbroker": KbrokerBroker, "apache": ApacheBroker}
