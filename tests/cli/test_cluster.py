"""`kbroker cluster`: info, health, logdirs."""

from __future__ import annotations

from pathlib import Path

from kbroker.broker import Broker

from ..brokers import started
from .conftest import Cli, ReadJson


async def test_info(cli: Cli, read_json: ReadJson, broker: Broker) -> None:
    await cli("topic", "create", "t", "-p", "3")
    found = await read_json("cluster", "info")
    assert found["cluster_id"] == broker.node.cluster.id
    assert (found["topics"], found["partitions"]) == (1, 3)
    (row,) = found["brokers"]
    assert (row["broker"], row["port"], row["leads"]) == (1, broker.endpoint.port, 3)
    assert f"cluster {found['cluster_id']}: 1 topics" in (await cli("cluster", "info")).stdout


async def test_health_names_a_damaged_partition(cli: Cli, tmp_path: Path) -> None:
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
        said = await cli("cluster", "health", "-b", broker.bootstrap_servers, status=1)
        assert "t-1" in said.stdout
        assert "KAFKA_STORAGE_ERROR" in said.stdout
        assert "kbroker log repair" in said.stdout
        assert "t-0" not in said.stdout
        read = ("topic", "consume", "t", "--from-beginning", "-p", "1", "-n", "1")
        refused = await cli(*read, "-b", broker.bootstrap_servers, status=1)
        assert "cannot be read" in refused.stderr


async def test_logdirs(cli: Cli, read_json: ReadJson, tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        address = ("-b", broker.bootstrap_servers)
        await cli("topic", "create", "t", "u", *address)
        await cli("topic", "produce", "t", "x" * 1000, *address)
        (row,) = await read_json("cluster", "logdirs", *address)
        assert (row["broker"], row["folder"], row["error"]) == (1, str(tmp_path), None)
        sizes = {each["partition"]: each["bytes"] for each in row["partitions"]}
        assert sizes["t-0"] > 1000
        (only,) = await read_json("cluster", "logdirs", "--topic", "u", *address)
        assert [each["partition"] for each in only["partitions"]] == ["u-0"]
        wide = (await cli("cluster", "logdirs", "-o", "wide", *address)).stdout
        assert wide.count("t-0") == 1
