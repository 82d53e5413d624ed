"""The systemd unit of examples/three-machines: its commands and settings, run locally."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..cluster.etcd import Etcd
from ..ports import free_ports
from .commands import consume, kbroker, produce, run, wait_until, wait_until_healthy
from .deployed import EXAMPLES, Deployed

pytestmark = pytest.mark.long

EXAMPLE = EXAMPLES / "three-machines"
UNIT = (EXAMPLE / "kbroker.service").read_text()
MACHINES = (1, 2, 3)


def unit_command(name: str, data: Path) -> list[str]:
    """Return a command of the unit without the program name, with a local data directory."""
    (line,) = re.findall(rf"^{name}=-?(.*)$", UNIT, re.MULTILINE)
    program, *rest = shlex.split(line)
    assert program.endswith("/kbroker")
    return [word.replace("/var/lib/kbroker", str(data)) for word in rest]


def machine(number: int, data: Path, cluster: str, port: int) -> Deployed:
    """Return a machine's broker on a local port."""
    lines = (EXAMPLE / "kbroker.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    mine = {
        "KBROKER_CLUSTER": cluster,
        "KBROKER_NODE_ID": str(number),
        "KBROKER_ADVERTISE": f"127.0.0.1:{port}",
        "KBROKER_CFG_BROKER_RACK": f"rack-{number}",
    }
    assert settings.keys() >= mine.keys()
    environment = {**settings, **mine, "KBROKER_PORT": str(port)}
    return Deployed(f"127.0.0.1:{port}", unit_command("ExecStart", data), environment)


@contextmanager
def machines(directory: Path) -> Iterator[tuple[dict[int, Deployed], Etcd]]:
    etcd = Etcd(directory, members=3)
    members = ",".join(each.removeprefix("http://") for each in etcd.endpoints)
    first = free_ports(len(MACHINES))
    every = {
        number: machine(
            number, data(directory, number), f"etcd://{members}/main", first + number - 1
        )
        for number in MACHINES
    }
    try:
        for each in every.values():
            each.start()
        yield every, etcd
    finally:
        for each in every.values():
            each.kill()
        etcd.stop()


def data(directory: Path, number: int) -> Path:
    return directory / f"machine-{number}"


def test_terminated_process_is_replaced_at_once_and_returns(tmp_path: Path) -> None:
    with machines(tmp_path) as (every, _):
        kbroker(every[1].address, "topic", "create", "orders", "--partitions", "12")
        described = kbroker(every[1].address, "topic", "describe", "orders")
        assert "replicas=3" in described
        produce(every[1].address, 0, 100)
        every[2].kill()
        after = every[2].run(unit_command("ExecStopPost", data(tmp_path, 2)))
        assert after.stdout == "node 2 is marked dead\n"
        produce(every[3].address, 100, 200)
        every[2].start()
        wait_until_healthy(every[2].address)
        assert consume(every[2].address) == [*range(200)]


def test_two_lost_etcd_members_are_replaced(tmp_path: Path) -> None:
    """Nodes need no restart and lose no acknowledged records (see docs/how-to/cluster.md)."""
    with machines(tmp_path) as (every, etcd):
        kbroker(every[1].address, "topic", "create", "orders", "--partitions", "3")
        produce(every[1].address, 0, 100)
        etcd.kill(1)
        etcd.kill(2)
        produce(every[1].address, 100, 200)  # it has already reserved producer IDs
        create = ("topic", "create", "others", "--bootstrap", every[1].address)
        refused = run(*create)
        assert refused.returncode == 1
        assert "etcd" in refused.stderr
        assert "disk" not in refused.stderr
        etcd.kill(0)
        etcd.restart(0, "--force-new-cluster")
        wait_until(lambda: run(*create, "--if-not-exists").returncode == 0)
        every[2].kill()
        every[2].start()
        wait_until_healthy(every[1].address)
        produce(every[2].address, 200, 300)
        assert consume(every[3].address) == [*range(300)]
