"""Control port: faults and clocks by JSON commands and by the command line."""

from __future__ import annotations

import http.client
import inspect
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from kbroker.cli import main
from kbroker.client.endpoint import Endpoint
from kbroker.testing import ExternalKafka, LocalBroker
from kbroker.testing.control import (
    CONNECTIONS_MAX,
    LOGIN_SECONDS,
    ControlConnections,
    run_controlled_broker,
)
from kbroker.testing.control_token import ControlToken
from kbroker.testing.fault_arguments import EFFECTS, FAULT_ARGUMENTS, REGISTRY_FAULT_ARGUMENTS

from ..commands import KBROKER
from ..limits import PROCESS_SECONDS


@contextmanager
def run_server(*flags: str) -> Iterator[dict[str, Any]]:
    """Yield the ready event of a server with a control port."""
    command = [
        *KBROKER,
        *["serve", "--memory", "--port", "0", "--control-port", "0", "--json"],
        *flags,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while (event := json.loads(process.stdout.readline()))["event"] != "ready":
                pass
            yield event
        finally:
            process.terminate()
            process.communicate(timeout=PROCESS_SECONDS)


def connect(ready: dict[str, Any]) -> socket.socket:
    """Open an unauthenticated connection."""
    host, _, port = ready["control"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def environment(ready: dict[str, Any]) -> dict[str, str]:
    """Return environment variables with the address of the control port."""
    return {
        "KBROKER_CONTROL": ready["control"],
        "KBROKER_CONTROL_TOKEN_FILE": ready["control_token_file"],
    }


class Commands:
    """Authenticated connection to a control port."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self._stream = connect(ready)
        self._lines = self._stream.makefile()
        token = Path(ready["control_token_file"]).read_text().strip()
        assert self("login", token=token) == {"ok": True}

    def send(self, line: bytes) -> dict[str, Any]:
        self._stream.sendall(line + b"\n")
        response: dict[str, Any] = json.loads(self._lines.readline())
        return response

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self.send(json.dumps({"do": do, **arguments}).encode())

    def ended(self) -> bool:
        """Return True if the broker has closed the connection."""
        return self._lines.readline() == ""

    def close(self) -> None:
        self._lines.close()
        self._stream.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Commands]:
    """Run one server for all tests of this module."""
    with run_server("--topic", "orders:2") as ready:
        commands = Commands(ready)
        yield commands
        commands.close()


@pytest.fixture
def ready(server: Commands) -> dict[str, Any]:
    """Open a new broker for each test."""
    return server("open", topics={"orders": 2})


@pytest.fixture
def command(ready: dict[str, Any]) -> Iterator[Commands]:
    commands = Commands(ready)
    yield commands
    assert commands("close")["ok"]
    commands.close()


def send(ready: dict[str, Any]) -> int:
    client = KafkaProducer(bootstrap_servers=ready["bootstrap_servers"], retry_backoff_ms=10)
    try:
        return int(client.send("orders", b"x", partition=0).get(10).offset)
    finally:
        client.close()


def test_json_command_arms_fault(ready: dict[str, Any], command: Commands) -> None:
    arguments = {"api": "Produce", "topic": "orders", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
    assert command("fault", **arguments) == {"ok": True, "fault": 1}
    assert not command("check")["ok"]
    assert send(ready) == 0
    assert command("hits", fault=1, wait=2)["hits"] == 2
    assert command("check") == {"ok": True}
    assert (
        command("fault", api="Produce", effect="disconnect", on_call=2, optional=True)["fault"] == 2
    )
    assert command("disarm", fault=2) == {"ok": True}
    assert command("wait_until_idle") == {"ok": True}
    text = command("explain", topic="orders", partition=0)["text"]
    assert text.startswith("partition orders-0 is online")
    assert "hit Produce" in text
    assert "topic orders: high watermarks 1" in command("report")["report"]


def test_json_commands_move_clocks(ready: dict[str, Any], command: Commands) -> None:
    kafka = ExternalKafka(ready["bootstrap_servers"])
    kafka.produce("orders", "x")
    assert command("advance", days=6)["ok"]
    assert len(kafka.records("orders")) == 1
    assert command("advance", days=2)["ok"]
    assert kafka.records("orders") == []
    assert command("advance", clock="coordinator", seconds=50, keep_members=True)["ok"]
    kafka.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"do": "dance"}', "there is no command 'dance' (valid: abort_transaction, add_node"),
        (b'{"do": "fault", "api": "Prodce"}', "did you mean Produce"),
        (
            b'{"do": "fault", "effect": "explode"}',
            "there is no effect 'explode' (valid: pass, disconnect",
        ),
        (b'{"do": "fault", "effect": "disconnect", "error": "X"}', "there is no error 'X'"),
        (
            b'{"do": "fault", "effect": "disconnect", "error": 6}',
            "either an error or another effect",
        ),
        (b'{"do": "fault", "effect": "delay"}', "effect delay: ms is missing"),
        (b'{"do": "fault", "colour": "red"}', "a fault has no 'colour'"),
        (b'{"do": "fault", "topics": "red"}', "did you mean topic?"),
        (b'{"do": "fault", "times": true}', "times must be int, not True"),
        (b'{"do": "fault", "on_call": 0}', "on_call must be at least 1, not 0"),
        (b'{"do": "fault", "probability": 2}', "probability must be from 0 to 1, not 2"),
        (b'{"do": "fault", "api": ["Fetch", 1]}', "api must be a list of str"),
        (
            b'{"do": "fault", "api": "Fetch", "partition": [true]}',
            "partition must be a list of int",
        ),
        (b'{"do": "fault", "api": "Fetch", "partition": -1}', "partition must be at least 0"),
        (b'{"do": "fault", "api": "Fetch", "until": "Metdata"}', "did you mean Metadata"),
        (
            b'{"do": "fault", "api": "Heartbeat", "effect": "corrupt_batch"}',
            "cannot corrupt a batch of Heartbeat",
        ),
        (b'{"do": "fault", "versions": [1]}', "versions must be an integer or [first, last]"),
        (b'{"do": "hits"}', "hits: missing a required argument: 'fault'"),
        (b'{"do": "close"}', "cannot close the main broker"),
        (b'{"do": "restore", "snapshot": 9}', "there is no snapshot 9"),
        (b'{"do": "crash_at", "point": "produce.appended"}', "has no disk that can fail"),
        (b'{"do": "power_cut"}', "create it with disk=True, or --faulty-disk"),
        (b'{"do": "open", "disk": true, "config": {"num.partitons": 2}}', "mean num.partitions?"),
        (b'{"do": "open", "topics": {"t": "many"}}', "topics['t'] must be a number, not 'many'"),
        (b'{"do": "move_coordinator", "group": "nope"}', "there is no group 'nope'"),
        (b'{"do": "move_coordinator"}', "pass either a group or a transactional ID"),
        (b'{"do": "abort_transaction", "transactional_id": "x"}', "there is no transactional ID"),
        (b'{"do": "expire_transaction", "transactional_id": "x"}', "there is no transactional ID"),
        (
            b'{"do": "wait_for_assignment", "group": "g", "partitions": ["t-0"]}',
            "invalid partitions",
        ),
        (b'{"do": "fault", "error": "NONE"}', "NONE is not an error"),
        (b'{"do": "fault", "api": "Fetch", "versions": 99}', "(valid: Fetch 0 to 18)"),
        (b'{"do": "advance", "hours": "x"}', "hours must be a number, not 'x'"),
        (b'{"do": "advance"}', "cannot move a clock by 0"),
        (b'{"do": "produce", "topic": "orders", "value": {"base64": "!"}}', "base64"),
        (b'{"do": "create_topic", "name": "orders"}', "already exists"),
        (b'{"do": "hits", "fault": 7}', "there is no fault 7"),
        (b'{"do": "explain"}', "explain: pass a group, a topic and partition, all three"),
        (b'{"do": "advance", "hours": -1}', "cannot move a clock back"),
        (b'{"do": "advance", "clock": "wall"}', "invalid clock 'wall' (valid: log, coordinator)"),
        (b'{"do": "wait_for_lag", "group": "g", "timeout": 0.01}', "waited 0.01 s"),
    ],
)
def test_invalid_command_returns_error(server: Commands, line: bytes, error: str) -> None:
    response = server.send(line)
    assert not response["ok"]
    assert error in response["error"]


def test_json_faults_follow_their_schedules(command: Commands) -> None:
    """Each schedule is tested on a fault that returns an error."""

    def hits(calls: int, **arguments: Any) -> int:
        new_broker = command("open", topics={"orders": 1})
        commands = Commands(new_broker)
        number = commands("fault", api="Produce", error="NOT_LEADER_OR_FOLLOWER", **arguments)[
            "fault"
        ]
        client = KafkaProducer(bootstrap_servers=new_broker["bootstrap_servers"], retries=0)
        for _ in range(calls):
            client.send("orders", b"x").exception  # noqa: B018
            client.flush(5)
        client.close()
        found = int(commands("hits", fault=number)["hits"])
        commands("close")
        commands.close()
        return found

    assert hits(3) == 1
    assert hits(3, times=2) == 2
    assert hits(3, always=True) == 3
    assert hits(3, on_call=3, topic="orders", partition=0) == 1
    assert hits(3, on_call=4, optional=True) == 0
    assert hits(3, probability=1.0, seed=1) == 3
    assert hits(3, probability=0.0) == 0
    assert hits(3, times=3, client_id="another", optional=True) == 0
    assert hits(3, times=3, versions=[0, 1], optional=True) == 0
    assert hits(3, until="FindCoordinator") == 3
    assert hits(3, until="Metadata") > 0, "requests before the first hit do not count"


def test_json_commands_open_and_close_brokers(command: Commands) -> None:
    new_broker = command("open", config={"num.partitions": 4, "auto.create.topics.enable": False})
    other = Commands(new_broker)
    assert other("create_topic", name="mine", partitions=2, configs={"retention.ms": 5})["ok"]
    assert other("topics")["topics"] == {"mine": 2}
    assert command("topics")["topics"] == {"orders": 2}
    other("fault", api="Fetch", error="UNKNOWN_SERVER_ERROR")
    failed = other("close")
    assert "never fired: saw no such request" in failed["error"]
    assert other.ended()
    for port in (new_broker["bootstrap_servers"], new_broker["control"]):
        host, _, number = port.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(number)))
    other.close()


def test_json_commands_read_records_and_groups(ready: dict[str, Any], command: Commands) -> None:
    command("create_topic", name="bytes", partitions=1)
    command("produce", topic="bytes", value={"base64": "/w=="}, key="k", headers=[["h", "v"]])
    command("produce", topic="bytes", value={"id": 1}, timestamp=1_000)
    first, second = command("wait_for", topic="bytes", count=2)["records"]
    assert (first["timestamp"], json.loads(first["value"])) == (1_000, {"id": 1})
    assert (second["value"], second["key"]) == ({"base64": "/w=="}, "k")
    assert second["headers"] == [["h", "v"]]
    assert command("records", topic="bytes")["records"] == [first, second]
    assert command("expect", topic="bytes", json={"id": 1})["record"] == first
    assert command("expect", topic="bytes", key="k")["record"] == second
    assert command("expect_nothing", topic="bytes")["ok"]
    consumer = KafkaConsumer(
        "bytes",
        bootstrap_servers=ready["bootstrap_servers"],
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    assert len([next(consumer), next(consumer)]) == 2
    consumer.commit()
    group = command("wait_for_group", group="g", members=1)["group"]
    assert group["members"][0]["partitions"] == [["bytes", 0]]
    assert command("wait_for_assignment", group="g", partitions=[["bytes", 0]])["group"] == group
    assert command("wait_for_commit", group="g", topic="bytes", partition=0, offset=2)["ok"]
    assert command("committed", group="g")["committed"] == [["bytes", 0, 2]]
    assert command("lag", group="g")["lag"] == 0
    assert command("wait_until_idle", group="g")["ok"]
    consumer.close()
    assert command("group", group="nobody")["group"] is None
    assert command("delete_topic", name="bytes")["ok"]


def test_json_commands_read_dead_letters(command: Commands) -> None:
    assert command("create_topic", name="dlq.orders")["ok"]
    assert "has no dead-letter queue" in command("dead_letters", group="s")["error"]
    configs = {"errors.deadletterqueue.topic.name": "dlq.orders"}
    assert command("configure_group", group="s", configs=configs) == {"ok": True}
    assert command("dead_letters", group="s") == {"ok": True, "dead_letters": []}
    values = {"topic": "orders", "partition": "1", "offset": "7", "group": "s"}
    values |= {"delivery.count": "5", "message": "Offset rejected by client."}
    headers = [[f"__dlq.errors.{name}", value] for name, value in values.items()]
    record = command("produce", topic="dlq.orders", key="k", headers=headers)["record"]
    found = command("wait_for_dead_letters", group="s", count=1)
    letter = {"topic": "orders", "partition": 1, "offset": 7, "delivery_count": 5}
    letter |= {"reason": "Offset rejected by client.", "record": record}
    assert found == {"ok": True, "dead_letters": [letter]}
    assert command("dead_letters", group="s") == found
    late = command("wait_for_dead_letters", group="s", count=2, timeout=0.01)
    assert "dead letters cannot be written: topic dlq.orders is not enabled" in late["error"]


def test_json_commands_restore_and_fork_snapshots(command: Commands, tmp_path: Path) -> None:
    def values(commands: Commands) -> list[str]:
        return [record["value"] for record in commands("records", topic="orders")["records"]]

    command("produce", topic="orders", value="first")
    before = command("snapshot")["snapshot"]
    command("produce", topic="orders", value="second")
    fork = Commands(command("fork", snapshot=before))
    assert values(fork) == ["first"]
    assert fork("close")["ok"]
    fork.close()
    assert command("restore", snapshot=before)["ok"]
    assert values(command) == ["first"]
    assert command("save", snapshot=before, directory=str(tmp_path / "saved"))["ok"]
    loaded = command("load", directory=str(tmp_path / "saved"))["snapshot"]
    command("produce", topic="orders", value="third")
    assert command("restore", snapshot=loaded)["ok"]
    assert values(command) == ["first"]


def test_json_commands_move_leaders_and_expire_members(
    ready: dict[str, Any], command: Commands
) -> None:
    assert send(ready) == 0
    number = command("fault", api=["Fetch", "ListOffsets"], error=1, partition=[0, 1])["fault"]
    assert command("disarm", fault=number)["ok"]
    assert "already disarmed" in command("disarm", fault=number)["error"]
    command("fault", api="Fetch")
    assert command("disarm_faults")["ok"]
    assert command("cap_versions", versions="3.9")["ok"]
    assert send(ready) == 1
    assert command("cap_versions", versions=None)["ok"]
    assert len(command("fence_producer")["producer_ids"]) == 2
    assert command("move_leader", topic="orders", partition=0)["ok"]
    assert send(ready) == 2
    assert command("offset_out_of_range", topic="orders") == {"ok": True, "offset": 4}
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=ready["bootstrap_servers"], group_id="g", client_id="me"
    )
    for _ in range(100):
        consumer.poll(timeout_ms=100)
        if consumer.assignment():
            break
    assert len(command("expire_member", group="g", member="me")["members"]) == 1
    assert command("move_coordinator", group="g")["ok"]
    consumer.close(autocommit=False)


def test_json_commands_end_transactions(ready: dict[str, Any], command: Commands) -> None:
    def write() -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": ready["bootstrap_servers"],
                "transactional.id": "tx",
                "log_level": 0,
            }
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", b"x")
        assert producer.flush(10) == 0
        return producer

    producers = [write()]
    assert command("abort_transaction", transactional_id="tx")["ok"]
    producers.append(write())
    assert command("expire_transaction", transactional_id="tx")["ok"]
    producers.append(write())
    assert command("move_coordinator", transactional_id="tx")["ok"]
    assert command("fence_producer", transactional_id="tx")["producer_ids"] == [0]
    text = command("explain", transactional_id="tx")["text"]
    assert text.startswith("transactional id tx is Empty: producer 0, epoch ")
    assert command("records", topic="orders")["records"] == []
    arguments = [sys.executable, "-m", "kbroker", "explain", "transaction", "tx"]
    finished = subprocess.run(
        arguments,
        env=os.environ | environment(ready),
        capture_output=True,
        check=False,
    )
    assert finished.stdout.decode().startswith("transactional id tx is Empty"), finished


@pytest.mark.slow
def test_json_commands_stop_and_crash_broker() -> None:
    with run_server("--topic", "orders:1", "--faulty-disk", "--idle-timeout", "1h") as ready:
        command = Commands(ready)
        assert send(ready) == 0
        assert command("stop")["ok"]
        assert not command("wait_until_idle")["ok"]
        assert command("start")["ok"]
        assert send(ready) == 1
        assert command("restart")["ok"]
        command("crash_at", point="produce.appended", mode="torn", seed=1)
        client = KafkaProducer(
            bootstrap_servers=ready["bootstrap_servers"],
            retry_backoff_ms=10,
            reconnect_backoff_ms=10,
        )
        sent = client.send("orders", b"survives")
        assert command("wait_for_crash", timeout=30)["ok"]
        sent.get(10)
        client.close()
        assert command("power_cut")["ok"]
        assert command("records", topic="orders")["records"][-1]["value"] == "survives"
        assert command("disk_flip", topic="orders", partition=0, offset=0)["ok"]
        assert command("disk_slow", ms=1)["ok"]
        assert command("disk_full", topic="orders")["ok"]
        assert command("disk_full", free=1_000_000)["ok"]
        assert command("disk_free_space")["ok"]
        command("produce", topic="orders", value="x")
        assert command("disk_tear_last_write")["ok"]
        assert "valid: fsync, write" in command("disk_fail", operation="read")["error"]
        assert "EIO or ENOSPC" in command("disk_fail", operation="fsync", error="EBAD?")["error"]
        command.close()


def test_wait_continues_when_another_connection_restarts_broker(
    ready: dict[str, Any], command: Commands
) -> None:
    waiter = Commands(ready)
    with ThreadPoolExecutor() as threads:
        wait = threads.submit(waiter, "wait_for", topic="orders", timeout=20)
        time.sleep(0.2)
        assert command("restart")["ok"]
        assert command("produce", topic="orders", value="x")["ok"]
        assert [record["value"] for record in wait.result()["records"]] == ["x"]
    waiter.close()


def test_json_commands_freeze_and_resume_clock(command: Commands) -> None:
    assert command("freeze")["ok"]
    assert command("now") == command("now")
    assert command("advance", seconds=1)["ok"]
    assert command("resume")["ok"]


def test_json_commands_arm_registry_faults(server: Commands) -> None:
    ready = server("open", schema_registry=True)
    command = Commands(ready)
    assert command("registry_fault", method="GET", error=50301) == {"ok": True, "fault": 1}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{ready['schema_registry']}/subjects", timeout=60)
    with refused.value as error:
        assert (error.code, json.load(error)["error_code"]) == (503, 50301)
    assert command("hits", fault=1, wait=1)["hits"] == 1
    assert "has no 'topic'" in command("registry_fault", topic="x")["error"]
    assert command("close")["ok"]
    command.close()


@pytest.mark.slow
def test_server_with_registry_accepts_registry_faults() -> None:
    with run_server("--registry-port", "0") as ready:
        command = Commands(ready)
        assert command("registry_fault", error=503)["ok"]
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{ready['schema_registry']}/subjects", timeout=60)
        refused.value.close()
        command.close()


def test_registry_fault_without_registry_is_rejected(command: Commands) -> None:
    assert "the broker has no schema registry" in command("registry_fault", error=503)["error"]


def known_commands(command: Commands) -> set[str]:
    """Return the commands that the error for an unknown command lists."""
    known = re.search(r"\(valid: (.*)\)", command("dance")["error"])
    assert known is not None
    return set(known[1].split(", "))


def test_control_page_lists_all_commands_and_arguments(command: Commands) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/control-protocol.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == known_commands(command)
    effects = page.partition("<!-- effects -->")[2].partition("<!-- /effects -->")[0]
    assert re.findall(r"`(\w+)`", effects) == list(EFFECTS)
    assert [
        word for word in {**FAULT_ARGUMENTS, **REGISTRY_FAULT_ARGUMENTS} if f"`{word}`" not in page
    ] == []


# Commands for methods of the broker that have another name, by method.
RENAMED_COMMANDS = {
    "bootstrap_servers": "open",
    "has_schema_registry": "open",
    "schema_registry_url": "open",
    "check_faults": "check",
    "wait_for_hits": "hits",
    "disk": "disk_flip",
}
# Attributes of `LocalBroker` that have no command.
PYTHON_ONLY = {"connections", "on", "run_in_broker", "running"}


def test_every_broker_method_has_a_command(command: Commands) -> None:
    methods = {name for name in dir(LocalBroker) if not name.startswith("_")} - PYTHON_ONLY
    assert {RENAMED_COMMANDS.get(name, name) for name in methods} <= known_commands(command)
    arguments = set(inspect.signature(LocalBroker.fault).parameters) - {"self", "when"}
    assert arguments <= set(FAULT_ARGUMENTS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--faulty-disk", "--", "true"],
        ["run", "--control", "--faulty-disk", "--keep", "--", "true"],
        ["serve", "--memory", "--faulty-disk"],
        ["serve", "--control-port", "0", "--faulty-disk"],
    ],
)
def test_faulty_disk_option_requires_control_port(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "--faulty-disk needs" in done.output


def test_start_node_with_port_in_use_returns_error(
    server: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = server("open", nodes=2)
    command = Commands(ready)
    address = command("nodes")["nodes"][1]["address"]
    assert command("stop_node", node=2)["ok"]
    with socket.create_server(Endpoint.parse(address)):
        response = command("start_node", node=2)
    assert not response["ok"]
    assert f"port {address.rpartition(':')[2]} is in use" in response["error"]
    assert "Traceback" not in capfd.readouterr().err
    assert command("start_node", node=2)["ok"]
    assert command("close")["ok"]
    command.close()


@pytest.mark.slow
def test_control_port_in_use_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [*KBROKER, "serve", "--memory", "--port", "0", "--control-port", port]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False
        )
    assert done.returncode == 3
    assert f"--control-port {port}" in done.stderr
    assert "choose another port (0 for a free one)" in done.stderr


@pytest.mark.slow
def test_cli_commands_control_broker(ready: dict[str, Any], command: Commands) -> None:
    def kbroker(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [*KBROKER, *arguments],
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    at = ("--control", ready["control"], "--control-token-file", ready["control_token_file"])
    number = kbroker("fault", "arm", "Produce", "--effect", "disconnect", "--after", *at).strip()
    assert "never fired" in kbroker("fault", "check", *at, status=1)
    send(ready)
    assert kbroker("fault", "hits", number, "--wait", "1", *at) == "1\n"
    kbroker("fault", "check", *at)
    kbroker("fault", "disarm", number, *at)
    assert kbroker("explain", "group", "g", *at).startswith("group g has no coordinator here")
    assert "fault disconnect" in kbroker("explain", "partition", "orders", "0", *at)
    assert "no connected member has fetched records" in kbroker(
        "explain", "share", "workers", "orders", "0", *at
    )
    kbroker("clock", "advance", "8d", *at)
    assert json.loads(kbroker("control", "topics", *at)) == {"topics": {"orders": 2}}
    printed = kbroker("control", "produce", "topic=orders", 'value={"id": 1}', "key=a", *at)
    assert json.loads(json.loads(printed)["record"]["value"]) == {"id": 1}
    assert "expected WORD=VALUE" in kbroker("control", "produce", "orders", *at, status=2)
    kbroker("clock", "advance", "50s", "--coordinator", "--keep-members", *at)
    for wrong in (["--control", "127.0.0.1:1"], ["--control-token-file", "/nowhere"]):
        assert "its Control line" in kbroker("fault", "check", *at, *wrong, status=1)
    wrong = ["--control-token-file", str(Path(__file__).parents[2] / "LICENSE")]
    assert "wrong token" in kbroker("fault", "check", *at, *wrong, status=1)


@pytest.mark.slow
def test_run_passes_control_address_to_its_command() -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [*KBROKER, "run", "--control", "--", sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=True
    )
    found = json.loads(done.stdout)
    assert found["KBROKER_CONTROL"] != found["KBROKER_BOOTSTRAP"]
    assert not Path(
        found["KBROKER_CONTROL_TOKEN_FILE"]
    ).exists()  # the token file is deleted with its server


# -- authentication

COMMAND = {"do": "create_topic", "name": "mischief"}


def responses_before_login(ready: dict[str, Any], *lines: bytes) -> list[dict[str, Any]]:
    """Return the responses to an unauthenticated client, until the server closes the connection."""
    with connect(ready) as stream, stream.makefile() as responses_before_login:
        stream.sendall(b"".join(lines))
        return [json.loads(line) for line in responses_before_login]


def test_web_page_cannot_send_commands(ready: dict[str, Any], command: Commands) -> None:
    """Any web page can make a browser send this request."""
    token = Path(ready["control_token_file"]).read_text().strip()
    for body in (
        [COMMAND],
        [{"do": "login", "token": token}, COMMAND],
    ):  # even with the right token
        text = "".join(json.dumps(line) + "\n" for line in body)
        request = urllib.request.Request(
            f"http://{ready['control']}/", text.encode(), {"Content-Type": "text/plain"}
        )
        with pytest.raises((http.client.HTTPException, OSError)):
            urllib.request.urlopen(request, timeout=60)
    assert command("topics") == {"ok": True, "topics": {"orders": 2}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        COMMAND,
        {"do": "login"},
        {"do": "login", "token": ""},
        {"do": "login", "token": "é"},
        {"do": "login", "token": None},
        {"do": "login", "token": "x" * 43},
    ],
    ids=repr,
)
def test_unauthenticated_connection_cannot_send_commands(
    ready: dict[str, Any], command: Commands, first: dict[str, Any]
) -> None:
    lines = [json.dumps(each).encode() + b"\n" for each in (first, COMMAND)]
    (response,) = responses_before_login(ready, *lines)
    assert re.match("the first line must be|wrong token", response["error"])
    assert command("topics") == {"ok": True, "topics": {"orders": 2}}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"no json", "a command must be a JSON object: Expecting value"),
        (b"[]", "a command must be a JSON object with the field"),
        (b"{}", "a command must be a JSON object with the field"),
        (
            b'{"do": "topics", "x": %s}' % (b"[" * 5000 + b"]" * 5000),
            "nested more than 100 levels deep",
        ),
    ],
    ids=["text", "list", "no verb", "nested"],
)
def test_invalid_line_closes_connection(ready: dict[str, Any], line: bytes, error: str) -> None:
    commands = Commands(ready)
    response = commands.send(line)
    assert not response["ok"]
    assert error in response["error"]
    assert commands.ended()
    commands.close()


@pytest.mark.slow
def test_silent_connection_is_closed() -> None:
    async def main() -> None:
        no_commands: Any = None
        ours, theirs = trio.testing.memory_stream_pair()
        await ControlConnections(no_commands, ControlToken("x", Path())).serve(theirs)
        await theirs.aclose()
        assert await ours.receive_some() == b""
        assert trio.current_time() - started == LOGIN_SECONDS

    clock = trio.testing.MockClock(autojump_threshold=0)
    started = clock.current_time()
    trio.run(main, clock=clock)


async def test_oldest_unauthenticated_connection_is_closed_at_limit() -> None:
    """Authenticated connections stay open."""
    commands: Any = SimpleNamespace(closed=False)
    connections = ControlConnections(commands, ControlToken("x", Path()))
    ended: list[int] = []

    async def serve(number: int, stream: trio.abc.Stream) -> None:
        await connections.serve(stream)
        ended.append(number)

    async with trio.open_nursery() as nursery:
        pairs = [trio.testing.memory_stream_pair() for _ in range(CONNECTIONS_MAX + 5)]
        for number, (ours, theirs) in enumerate(pairs):
            nursery.start_soon(serve, number, theirs)
            if not number:
                await ours.send_all(b'{"do": "login", "token": "x"}\n')
                assert b"true" in await ours.receive_some()
            await trio.testing.wait_all_tasks_blocked()
        assert ended == [1, 2, 3, 4, 5]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_token_file_is_readable_only_by_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    flags = ("--control-token-file", str(path))
    seen = []
    for _ in range(2):
        with run_server(*flags) as ready:
            assert ready["control_token_file"] == str(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            commands = Commands(ready)
            commands.close()
            seen.append(path.read_text())
    assert seen[0] == seen[1]  # later shell commands can read it
    with run_server() as ready:
        temporary = Path(ready["control_token_file"])
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert temporary.read_text() not in seen
    assert not temporary.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "mode", "error"),
    [
        ("token", 0o640, "other users than its owner can access it"),
        ("token", 0o602, "other users than its owner can access it"),
        (" \n", 0o600, "it is empty"),
        ("é", 0o600, "ascii"),
        (None, 0, "No such file or directory"),
    ],
)
def test_unusable_token_file_is_rejected(
    tmp_path: Path, content: str | None, mode: int, error: str
) -> None:
    path = tmp_path / "token"
    if content is None:
        path = path / "token"
    else:
        path.write_text(content)
        path.chmod(mode)
    flags = ["--control-port", "0", "--control-token-file", str(path)]
    command = [*KBROKER, "serve", "--memory", "--port", "0", *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False
    )
    assert done.returncode == 3
    assert f"--control-token-file {path}" in done.stderr
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_json_commands_open_broker_with_users_and_acls(server: Commands) -> None:
    acls = {"alice": ["WRITE topic others"]}
    options = {"topics": {"orders": 1}, "tls": True, "users": {"alice": "pencil"}}
    ready = server("open", **options, acls=acls)
    command = Commands(ready)
    client = command("client", user="alice", mechanism="PLAIN")
    assert client["properties"]["security.protocol"] == "SASL_SSL"
    settings = {
        "bootstrap_servers": ready["bootstrap_servers"],
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cadata=client["authority"]),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "pencil",
    }
    producer = KafkaProducer(**settings)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("orders", b"x").get(10)
    assert command("allow", user="alice", rights=["WRITE topic orders"])["ok"]
    assert producer.send("orders", b"x").get(10).offset == 0
    producer.close()
    assert command("close")["ok"]
    command.close()


@pytest.mark.slow
def test_json_commands_open_broker_with_certificates_and_tokens(server: Commands) -> None:
    ready = server("open", tokens=["bot"], tls=True)
    command = Commands(ready)
    shown = command("client")["properties"]["sasl.oauthbearer.token.endpoint.url"]
    assert Path(shown.removeprefix("file://")).read_text().count(".") == 2
    stale = command("token", user="bot", claims={"exp": 0})["token"]
    assert command("token", user="bot", claims={"user": "somebody else"})["ok"]
    refused = command("client", token=stale)["properties"]
    for properties, is_accepted in ((command("client")["properties"], True), (refused, False)):
        arguments = [word for item in properties.items() for word in ("-X", "=".join(item))]
        done = subprocess.run(
            [*KBROKER, "health", "-b", ready["bootstrap_servers"], *arguments],
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
            check=False,
        )
        assert (done.returncode == 0) is is_accepted, done.stderr
    assert command("close")["ok"]
    command.close()
    ready = server("open", certificates=["shop"])
    command = Commands(ready)
    assert "PRIVATE KEY" in command("client", user="shop")["properties"]["ssl.keystore.key"]
    assert command("close")["ok"]
    command.close()


async def test_failed_start_frees_the_control_port() -> None:
    async def prepare(_: object) -> None:
        pass

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(ValueError, match="disk=True"):
        async with run_controlled_broker(port, None, prepare, disk=True, nodes=2):
            pass
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    await listener.aclose()


async def test_command_runs_while_all_other_connections_wait() -> None:
    """The command may be the one for which the others wait."""
    happened = threading.Event()

    def execute(command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "wait":
            assert happened.wait(PROCESS_SECONDS)
        else:
            happened.set()
        return {"ok": True}

    commands: Any = SimpleNamespace(closed=False, execute=execute)
    connections = ControlConnections(commands, ControlToken("x", Path()))

    async def send(do: str) -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(connections.serve, theirs)
        await ours.send_all(b'{"do": "login", "token": "x"}\n')
        assert b"true" in await ours.receive_some()
        await ours.send_all(b'{"do": "%s"}\n' % do.encode())
        streams.append(ours)

    streams: list[trio.abc.Stream] = []
    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS_MAX - 1):
            await send("wait")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await send("produce")
        for stream in streams:
            assert b"true" in await stream.receive_some()
        nursery.cancel_scope.cancel()
