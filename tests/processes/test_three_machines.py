"""The unit of examples/three-machines: what systemd would run, with the settings that it would give."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kbroker.client import check_round_trip

from ..cluster.etcd import Etcd
from ..ports import free_ports
from .commands import consume, is_healthy, kbroker, produce, wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples/three-machines"
UNIT = (EXAMPLE / "kbroker.service").read_text()
MACHINES = (1, 2, 3)


class Machine:
    """One of them, on a port of this one."""

    def __init__(self, number: int, folder: Path, cluster: str, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._data = folder / f"machine-{number}"
        lines = (EXAMPLE / "kbroker.env").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        mine = {
            "KBROKER_CLUSTER": cluster,
            "KBROKER_NODE_ID": str(number),
            "KBROKER_ADVERTISE": self.address,
            "KBROKER_CFG_BROKER_RACK": f"rack-{number}",
        }
        assert settings.keys() >= mine.keys()
        self._environment = {**os.environ, **settings, **mine, "KBROKER_PORT": str(port)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command("ExecStart"), env=self._environment)
        wait_until(self._answers)

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        try:
            trio.run(check_round_trip, host, int(port))
        except OSError:
            return False
        return True

    def kill(self) -> str:
        """Returns what is run behind the process that has ended, and prints."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        command = self._command("ExecStopPost")
        return subprocess.run(
            command, env=self._environment, check=True, text=True, capture_output=True
        ).stdout

    def _command(self, name: str) -> list[str]:
        (line,) = re.findall(rf"^{name}=-?(.*)$", UNIT, re.MULTILINE)
        program, *words = shlex.split(line)
        assert program.endswith("/kbroker")
        words = [word.replace("/var/lib/kbroker", str(self._data)) for word in words]
        return [sys.executable, "-m", "kbroker", *words]


@contextmanager
def machines(folder: Path) -> Iterator[dict[int, Machine]]:
    etcd = Etcd(folder, members=3)
    members = ",".join(each.removeprefix("http://") for each in etcd.endpoints)
    first = free_ports(len(MACHINES))
    every = {
        number: Machine(number, folder, f"etcd://{members}/main", first + number - 1)
        for number in MACHINES
    }
    try:
        for each in every.values():
            each.start()
        yield every
    finally:
        for each in every.values():
            if each.process is not None:
                each.process.kill()
                each.process.wait()
        etcd.stop()


def test_a_process_that_dies_is_missed_at_once_and_comes_back(tmp_path: Path) -> None:
    with machines(tmp_path) as every:
        kbroker(every[1].address, "topic", "create", "orders", "--partitions", "12")
        described = kbroker(every[1].address, "topic", "describe", "orders")
        assert "replicas=3" in described
        produce(every[1].address, 0, 100)
        assert every[2].kill() == "node 2 is gone\n"
        produce(every[3].address, 100, 200)
        every[2].start()
        wait_until(lambda: is_healthy(every[2].address))
        assert consume(every[2].address) == [*range(200)]
