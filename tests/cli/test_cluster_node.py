"""`kbroker serve --nodes` and `kbroker cluster node` as separate processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from kbroker.cli import main

from ..testing.test_control import environment, run_server


def run(ready: dict[str, Any], *arguments: str, status: int = 0) -> str:
    """Run a command and return its output."""
    result = CliRunner().invoke(main, ["cluster", *arguments], env=environment(ready))
    assert result.exit_code == status, result.output
    return result.output


def states(ready: dict[str, Any]) -> dict[int, str]:
    rows: list[dict[str, Any]] = json.loads(run(ready, "node", "list", "-o", "json"))
    return {row["id"]: row["state"] for row in rows}


@pytest.mark.slow
def test_node_commands_stop_start_add_and_remove_nodes(tmp_path: Path) -> None:
    port_file = tmp_path / "ports"
    flags = ("--nodes", "3", "--topic", "orders:3", "-o", "default.replication.factor=3")
    with run_server(*flags, "--port-file", str(port_file)) as ready:
        assert [node["node_id"] for node in ready["nodes"]] == [1, 2, 3]
        addresses = [node["listeners"]["PLAINTEXT"] for node in ready["nodes"]]
        assert ready["bootstrap_servers"] == ",".join(addresses)
        run(ready, "node", "crash", "2")
        run(ready, "node", "stop", "3")
        assert states(ready) == {1: "running", 2: "crashed", 3: "stopped"}
        producer = Producer({"bootstrap.servers": addresses[0]})
        delivered: list[int] = []
        for partition in range(3):
            producer.produce(
                "orders",
                b"x",
                partition=partition,
                on_delivery=lambda error, message: delivered.append(message.offset()),
            )
        assert producer.flush(20) == 0
        assert delivered == [0, 0, 0]
        assert port_file.read_text() == ready["bootstrap_servers"] + "\n"
        run(ready, "node", "start", "2")
        run(ready, "node", "start", "3")
        assert run(ready, "node", "add").strip() == "4"
        run(ready, "node", "remove", "--yes", "1")
        assert states(ready) == dict.fromkeys((2, 3, 4), "running")
        run(ready, "link", "cut", "2", "3", "--one-way")
        run(ready, "link", "heal")
        error = run(ready, "node", "crash", "7", status=1)
        assert "there is no node 7 in this process (valid: 2, 3, 4)" in error
        assert "give both nodes of a link, or none" in run(ready, "link", "heal", "2", status=2)


@pytest.mark.slow
def test_topic_commands_wait_for_new_leader_after_crash(tmp_path: Path) -> None:
    flags = ("--nodes", "3", "--topic", "orders:3", "-o", "default.replication.factor=3")
    with run_server(*flags) as ready:
        environment = {"KBROKER_BOOTSTRAP": ready["bootstrap_servers"]}

        def command(*arguments: str, given: str = "") -> str:
            result = CliRunner().invoke(main, ["topic", *arguments], env=environment, input=given)
            assert result.exit_code == 0, result.output
            return result.output

        lines = [f"{number}:{number}" for number in range(20)]
        run(ready, "node", "crash", "2")
        command("produce", "orders", "-q", "-d", ":", given="\n".join(lines))
        run(ready, "node", "start", "2")
        run(ready, "node", "crash", "3")
        read = command("consume", "orders", "-o", ":end", "-f", "%v\n")
        assert sorted(map(int, read.split())) == list(range(20))
