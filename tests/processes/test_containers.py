"""Container examples: commands and settings of compose and Kubernetes, run locally."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ..ports import free_ports
from .commands import consume, health_problems, kbroker, produce, wait_until
from .deployed import EXAMPLES, Deployed, Members, replace_locations

COMPOSE = EXAMPLES / "compose/compose.yaml"
KUBERNETES = EXAMPLES / "kubernetes"
BROKERS = 3


class Container(NamedTuple):
    """A container: settings, command, and the readiness `probe` of the broker."""

    environment: Mapping[str, str]
    arguments: Sequence[str] = ()
    probe: Sequence[str] = ()


def read_compose_file() -> tuple[list[Container], list[Container]]:
    """Return the etcd members and the brokers of compose.yaml."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    members, brokers = [], []
    for name, service in services.items():
        environment = {key: str(value) for key, value in service["environment"].items()}
        if name.startswith("etcd"):
            members.append(Container(environment))
        else:
            _, program, *probe = service["healthcheck"]["test"]
            assert program == "kbroker"
            brokers.append(Container(environment, service["command"], probe))
    return members, brokers


def read_manifest(manifest: str) -> list[Container]:
    """Return the containers of a StatefulSet with the environment that Kubernetes sets."""
    documents = yaml.safe_load_all((KUBERNETES / manifest).read_text())
    (found,) = (each for each in documents if each["kind"] == "StatefulSet")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    probe = container["readinessProbe"].get("exec", {}).get("command", ["kbroker"])
    assert probe[0] == "kbroker"
    return [
        Container(
            _environment(found["metadata"]["name"], index, container["env"]),
            container.get("args", ()),
            probe[1:],
        )
        for index in range(found["spec"]["replicas"])
    ]


def _environment(name: str, index: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    fields = {
        "metadata.name": f"{name}-{index}",
        "metadata.namespace": "default",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
    }
    known: dict[str, str] = {}
    for row in rows:
        if "value" in row:
            value = re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], row["value"])
        else:
            value = fields[row["valueFrom"]["fieldRef"]["fieldPath"]]
        known[row["name"]] = value
    return known


@contextmanager
def running(
    members: Sequence[Container], brokers: Sequence[Container], directory: Path
) -> Iterator[list[Deployed]]:
    """Run all containers, each with its own ports and directory."""
    here = assign_local_addresses([*members, *brokers])
    etcd = Members(
        with_local_addresses(each.environment, here)
        | {"ETCD_DATA_DIR": str(directory / f"etcd-{number}")}
        for number, each in enumerate(members)
    )
    deployed = [
        _broker(each, here, directory / f"broker-{number}") for number, each in enumerate(brokers)
    ]
    try:
        for broker in deployed:
            broker.start()
        yield deployed
    finally:
        for broker in deployed:
            broker.kill()
        etcd.stop()


def _broker(container: Container, here: Mapping[str, str], data: Path) -> Deployed:
    settings = container.environment
    advertised = settings.get("KBROKER_CFG_ADVERTISED_LISTENERS") or settings["KBROKER_ADVERTISE"]
    address = here[addresses_in(advertised)[-1]]
    port = {} if "KBROKER_CFG_LISTENERS" in settings else {"KBROKER_PORT": address.split(":")[1]}
    arguments = [each.replace("/data", str(data)) for each in container.arguments]
    # The probe contains no address. Without the variable it would use the default port.
    bootstrap = {"KBROKER_BOOTSTRAP": address}
    return Deployed(address, arguments, with_local_addresses(settings, here) | port | bootstrap)


def addresses_in(text: str) -> list[str]:
    """Return the addresses that contain a host name."""
    return re.findall(r"[a-z][\w.-]*:\d+", text)


def assign_local_addresses(containers: Sequence[Container]) -> dict[str, str]:
    """Map each address in the settings to a local one."""
    found = {
        name
        for each in containers
        for value in each.environment.values()
        for name in addresses_in(value)
    }
    first = free_ports(len(found))
    return {address: f"127.0.0.1:{first + number}" for number, address in enumerate(sorted(found))}


# Advertised-address setting of each listen-address setting.
ADVERTISED_SETTINGS = {
    "ETCD_LISTEN_PEER_URLS": "ETCD_INITIAL_ADVERTISE_PEER_URLS",
    "ETCD_LISTEN_CLIENT_URLS": "ETCD_ADVERTISE_CLIENT_URLS",
    "KBROKER_CFG_LISTENERS": "KBROKER_CFG_ADVERTISED_LISTENERS",
}


def with_local_addresses(settings: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Return settings with all addresses replaced by local ones.

    A wildcard listen address such as 0.0.0.0:9092 becomes the local address that is advertised for it.

    Args:
        settings: Environment variables of a container.
        here: Local address of each address with a host name.
    """
    own: dict[str, str] = {}
    for listening, advertised in ADVERTISED_SETTINGS.items():
        everywhere = re.findall(r"0\.0\.0\.0:\d+", settings.get(listening, ""))
        known = (here[name] for name in addresses_in(settings.get(advertised, "")))
        own.update(zip(everywhere, known, strict=True))
    return replace_locations(settings, {**here, **own})


def _is_ready(broker: Deployed, probe: Sequence[str]) -> bool:
    return broker.run(probe).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_containers_replicate_during_rolling_restart(kind: str, tmp_path: Path) -> None:
    """Each broker restarts when the previous broker is ready, as in an upgrade."""
    if kind == "compose":
        members, brokers = read_compose_file()
    else:
        members, brokers = read_manifest("etcd.yaml"), read_manifest("kbroker.yaml")
    assert (len(members), len(brokers)) == (3, BROKERS)
    with running(members, brokers, tmp_path) as deployed:
        kbroker(deployed[0].address, "topic", "create", "orders", "--partitions", "6")
        described = kbroker(deployed[1].address, "topic", "describe", "orders")
        assert "replicas=3" in described
        for number, (broker, container) in enumerate(zip(deployed, brokers, strict=True)):
            other = deployed[number - 1].address
            produce(other, 100 * number, 100 * number + 50)
            broker.terminate()
            assert health_problems(other)
            produce(other, 100 * number + 50, 100 * number + 100)
            broker.start()
            wait_until(partial(_is_ready, broker, container.probe))
        assert consume(deployed[0].address) == [*range(100 * BROKERS)]


@pytest.mark.slow
@pytest.mark.parametrize("manifest", ["etcd.yaml", "kbroker.yaml"])
def test_manifests_match_kubernetes_schema(manifest: str) -> None:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(KUBERNETES / manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
