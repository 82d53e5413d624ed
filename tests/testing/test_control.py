"""Faults and clocks by JSON lines and by the command line, as tests in other languages use them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer

from kbroker.testing import ExternalKafka

KBROKER = [sys.executable, "-m", "kbroker"]
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@contextmanager
def served(*flags: str) -> Iterator[dict[str, Any]]:
    """The ready event of a server that takes orders."""
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
            process.communicate(timeout=30)


class Orders:
    """A connection for orders."""

    def __init__(self, ready: dict[str, Any]) -> None:
        host, _, port = ready["control"].rpartition(":")
        self._stream = socket.create_connection((host, int(port)))
        self._lines = self._stream.makefile()

    def send(self, line: bytes) -> dict[str, Any]:
        self._stream.sendall(line + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def __call__(self, do: str, **words: Any) -> dict[str, Any]:
        return self.send(json.dumps({"do": do, **words}).encode())

    def close(self) -> None:
        self._lines.close()
        self._stream.close()


@pytest.fixture
def ready() -> Iterator[dict[str, Any]]:
    with served("--topic", "orders:2") as ready:
        yield ready


@pytest.fixture
def order(ready: dict[str, Any]) -> Iterator[Orders]:
    orders = Orders(ready)
    yield orders
    orders.close()


def send(ready: dict[str, Any]) -> int:
    client = KafkaProducer(bootstrap_servers=ready["bootstrap_servers"], retry_backoff_ms=10)
    try:
        return int(client.send("orders", b"x", partition=0).get(10).offset)
    finally:
        client.close()


def test_a_fault_by_json(ready: dict[str, Any], order: Orders) -> None:
    words = {"api": "Produce", "topic": "orders", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
    assert order("fault", **words) == {"ok": True, "fault": 1}
    assert not order("check")["ok"]
    assert send(ready) == 0
    assert order("hits", fault=1, wait=2) == {"ok": True, "hits": 2}
    assert order("check") == {"ok": True}
    assert order("fault", api="Produce", effect="disconnect", on_call=2, maybe=True)["fault"] == 2
    assert order("disarm", fault=2) == {"ok": True}
    assert order("settled") == {"ok": True}
    text = order("explain", topic="orders", partition=0)["text"]
    assert text.startswith("partition orders-0 is online")
    assert "hit Produce" in text
    assert "topic orders: ends at 1" in order("report")["report"]


def test_time_by_json(ready: dict[str, Any], order: Orders) -> None:
    kafka = ExternalKafka(ready["bootstrap_servers"])
    kafka.produce("orders", "x")
    assert order("advance", days=6)["ok"]
    assert len(kafka.records("orders")) == 1
    assert order("advance", days=2)["ok"]
    assert kafka.records("orders") == []
    assert order("advance", clock="coordinator", seconds=50, keep_members=True)["ok"]
    kafka.close()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"no json", "Expecting value"),
        (b"[]", "an order is a JSON object"),
        (b'{"do": "dance"}', "`do` is one of advance, check"),
        (b'{"do": "fault", "api": "Prodce"}', "did you mean Produce"),
        (b'{"do": "fault", "effect": "explode"}', "effect is one of pass, error"),
        (b'{"do": "fault", "colour": "red"}', "colour"),
        (b'{"do": "hits", "fault": 7}', "there is no fault 7"),
        (b'{"do": "explain"}', "explain takes a group, or a topic"),
        (b'{"do": "advance", "hours": -1}', "does not go back"),
        (b'{"do": "advance", "clock": "wall"}', "clock is log or coordinator"),
        (b'{"do": "wait_for_lag", "group": "g", "timeout": 0.01}', "waited 0.01 s"),
    ],
)
def test_orders_that_make_no_sense(order: Orders, line: bytes, error: str) -> None:
    answer = order.send(line)
    assert not answer["ok"]
    assert error in answer["error"]


def test_the_command_line(ready: dict[str, Any]) -> None:
    def kbroker(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [*KBROKER, *words], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    at = ("--control", ready["control"])
    number = kbroker("fault", "arm", "Produce", "--effect", "disconnect", "--after", *at).strip()
    assert "never fired" in kbroker("fault", "check", *at, status=1)
    send(ready)
    assert kbroker("fault", "hits", number, "--wait", "1", *at) == "1\n"
    kbroker("fault", "check", *at)
    kbroker("fault", "disarm", number, *at)
    assert kbroker("explain", "group", "g", *at).startswith("group g has no coordinator here")
    assert "fault disconnect" in kbroker("explain", "partition", "orders", "0", *at)
    kbroker("clock", "advance", "8d", *at)
    kbroker("clock", "advance", "50s", "--coordinator", "--keep-members", *at)
    assert "Control line" in kbroker("fault", "check", "--control", "127.0.0.1:1", status=1)


def test_run_gives_the_address_to_its_command() -> None:
    script = "import os; print(os.environ['KBROKER_CONTROL'], os.environ['KBROKER_BOOTSTRAP'])"
    command = [*KBROKER, "run", "--control", "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    control, bootstrap = done.stdout.split()
    assert control != bootstrap
