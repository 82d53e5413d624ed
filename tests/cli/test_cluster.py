"""`kbroker cluster`: info, health, logdirs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.client import transaction_problems
from kbroker.cluster import Cluster
from kbroker.cluster.store import StoreProblem
from kbroker.partitions import log_dir_monitor
from kbroker.storage.crash_files import CrashFiles

from ..brokers import started, started_on
from ..commands import Cli, ReadJson
from ..refusing_files import DATA, RefusingFiles
from ..replication.harness import place_topic, try_send, until_leader
from ..wire import connected, create_topic, until
from .test_transactions import begin


async def test_cluster_info_shows_id_and_brokers(
    cli: Cli, read_json: ReadJson, broker: Broker
) -> None:
    await cli("topic", "create", "t", "-p", "3")
    found = await read_json("cluster", "info")
    assert found["cluster_id"] == broker.node.cluster.id
    assert (found["topics"], found["partitions"]) == (1, 3)
    (row,) = found["brokers"]
    assert (row["broker"], row["port"], row["leads"]) == (1, broker.endpoint.port, 3)
    text = (await cli("cluster", "info")).stdout
    assert f"cluster {found['cluster_id']}: 1 topic, " in text


@pytest.mark.slow
async def test_cluster_health_reports_damaged_partition(cli: Cli, tmp_path: Path) -> None:
    assert (await cli("cluster", "health")).stdout == "healthy\n"
    async with started(tmp_path) as broker:
        await cli("topic", "create", "t", "-p", "2", "-b", broker.bootstrap_servers)
        for _ in range(3):
            await cli("topic", "produce", "t", "x", "-p", "1", "-b", broker.bootstrap_servers)
    segment = tmp_path / "t-1" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[16] = 9  # the format byte of the first batch
    segment.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    async with started(tmp_path) as broker:
        output = await cli("cluster", "health", "-b", broker.bootstrap_servers, status=1)
        assert "t-1" in output.stdout
        assert "KAFKA_STORAGE_ERROR" in output.stdout
        assert "kbroker log repair" in output.stdout
        assert not re.search(
            r"\bt-0", output.stdout
        )  # the directory of this test may be below pytest-0
        read = ("topic", "consume", "t", "--from-beginning", "-p", "1", "-n", "1")
        refused = await cli(*read, "-b", broker.bootstrap_servers, status=1)
        assert "cannot be read" in refused.stderr


async def test_cluster_health_reports_unwritable_metadata_store(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = StoreProblem("etcd is full", "make room; then disarm the alarm")
    monkeypatch.setattr(Cluster, "store_problem", problem)
    output = await cli("cluster", "health", "-o", "json", status=1)
    (row,) = json.loads(output.stdout)
    assert row == {
        "what": "metadata",
        "where": str(broker.node.id),
        "problem": problem.description,
        "action": problem.action,
        "severity": "error",
    }


async def test_cluster_health_reports_unwritable_metadata_journal(cli: Cli) -> None:
    files = RefusingFiles()
    async with started_on(files, DATA, nodes=2) as broker:
        address = ("-b", broker.bootstrap_servers)
        files.refuse(DATA)
        await cli("topic", "create", "t", *address, status=1)
        rows = json.loads((await cli("cluster", "health", *address, "-o", "json", status=1)).stdout)
        (row, _) = [each for each in rows if each["what"] == "metadata"]
        assert "cluster.journal: Read-only file system" in row["problem"]
        assert "make it writable" in row["action"]
        files.heal()
        await cli("topic", "create", "t", *address)
        await until(lambda: not broker.node.partitions.logs.has_read_only)
        assert (await cli("cluster", "health", *address)).stdout == "healthy\n"


async def test_cluster_logdirs_shows_partition_sizes(
    cli: Cli, read_json: ReadJson, tmp_path: Path
) -> None:
    async with started(tmp_path) as broker:
        address = ("-b", broker.bootstrap_servers)
        await cli("topic", "create", "t", "u", *address)
        await cli("topic", "produce", "t", "x" * 1000, *address)
        (row,) = await read_json("cluster", "logdirs", *address)
        assert (row["broker"], row["directory"], row["error"]) == (1, str(tmp_path), None)
        sizes = {each["partition"]: each["bytes"] for each in row["partitions"]}
        assert sizes["t-0"] > 1000
        (only,) = await read_json("cluster", "logdirs", "--topic", "u", *address)
        assert [each["partition"] for each in only["partitions"]] == ["u-0"]
        wide = (await cli("cluster", "logdirs", "-o", "wide", *address)).stdout
        assert wide.split().count("t-0") == 1
        directory, partitions = wide.split("\n\n")
        assert directory.splitlines()[0].split()[2:] == ["PARTITIONS", "SIZE", "FREE", "TOTAL"]
        assert partitions.splitlines()[1].split() == ["1", "t-0", "1.1", "kB"]


async def test_cluster_health_reports_read_only_directory(cli: Cli) -> None:
    files = RefusingFiles()
    async with started_on(files, DATA, nodes=3) as broker:
        address = ("-b", broker.bootstrap_servers)
        alone = await place_topic(broker, "alone", 2)
        await place_topic(broker, "shared", 2, 1, 3)
        files.refuse(f"{DATA}/node-2")
        await try_send(broker, 2, alone, b"x")
        await until_leader(broker, "shared", {1, 3})
        output = (await cli("cluster", "health", *address, "-o", "wide", status=1)).stdout
        rows = {" ".join(line.split()[:2]): line for line in output.splitlines()}
        assert "read-only" in rows["directory 2:/data/node-2"]
        assert "read-only: 2:/data/node-2" in rows["partition alone-0"]
        assert "kbroker topic trim" in rows["partition alone-0"]
        assert "under-replicated: not in sync on 2" in rows["partition shared-0"]
        files.heal()
        await until(lambda: not broker.local_node(2).node.partitions.logs.has_read_only)
        await until(lambda: len(broker.node.cluster.topics["shared"].partitions[0].isr) == 3)
        assert (await cli("cluster", "health", *address)).stdout == "healthy\n"


async def test_nearly_full_disk_is_reported_by_health_and_log(
    cli: Cli, read_json: ReadJson, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning appears when usage exceeds 90 %, and again after usage was lower for a while."""
    monkeypatch.setattr(log_dir_monitor, "USAGE_CHECK_SECONDS", 0.001)
    files = FillingFiles()
    async with started_on(files, DATA) as broker:
        address = ("-b", broker.bootstrap_servers)
        for used, lines in (
            (0.89, 0),
            (0.91, 1),
            (0.95, 1),
            (0.89, 1),
            (0.91, 1),
            (0.5, 1),
            (0.93, 2),
        ):
            files.used_part = used
            looks = files.looks
            await until(lambda looks=looks: files.looks > looks + 1)  # type: ignore[misc]
            assert caplog.text.count("is nearly full") == lines, used
        assert "/data is nearly full: 93 % are used" in caplog.text
        output = (await cli("cluster", "health", *address, "-o", "wide")).stdout
        assert "nearly full: 93% of the disk is used" in output
        (row,) = await read_json("cluster", "health", *address)
        assert row["severity"] == "warning"


class FillingFiles(CrashFiles):
    """A file system that reports a given usage of its disk."""

    used_part = 0.5
    looks = 0

    def usage(self, path: str) -> tuple[int, int]:
        self.looks += 1
        return 1 << 40, int((1 - self.used_part) * (1 << 40))


async def test_cluster_health_warns_of_open_transaction_with_status_zero(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started() as broker:
        address = ("-b", broker.bootstrap_servers)
        async with connected(broker.endpoint) as wire:
            await begin(wire, "payments", await create_topic(wire, "t"))
        assert (await cli("cluster", "health", *address)).stdout == "healthy\n"
        monkeypatch.setattr(transaction_problems, "OPEN_TRANSACTION_MS", 0)
        (row,) = json.loads((await cli("cluster", "health", *address, "-o", "json")).stdout)
        assert (row["what"], row["where"], row["severity"]) == (
            "transaction",
            "payments",
            "warning",
        )
        assert row["problem"] == "open for 0 minutes in t-0; read_committed consumers wait"
        assert "`kbroker cluster txn abort payments`" in row["action"]
