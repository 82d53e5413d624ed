"""`kbroker audit`: output and exit status."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..commands import Cli, ReadJson, invoke
from ..wire import connected, create_topic, produce, request, sequenced

LINES = "".join(f'{{"key": "k{n}", "value": {{"id": {n}}}, "timestamp": {n}}}\n' for n in range(20))


async def fill(cli: Cli, topic: str, lines: str = LINES) -> None:
    await cli("topic", "create", topic, "--partitions", "2")
    await cli("topic", "produce", topic, "--json", "-q", stdin=lines)


async def test_audit_of_complete_topic_reports_clean(cli: Cli, read_json: ReadJson) -> None:
    await fill(cli, "t")
    output = (await cli("audit", "t", "--unique-by", "field:id")).stdout
    assert output.startswith("PARTITION  RECORDS  FIRST-OFFSET")
    assert "20 records, 20 different keys, 0 duplicate records" in output
    assert output.endswith("clean\n")
    found = await read_json("audit", "t", "-p", "1")
    assert (found["clean"], found["findings"], len(found["partitions"])) == (True, [], 1)
    line = json.loads((await cli("audit", "t", "--json")).stdout)
    assert sum(row["records"] for row in line["partitions"]) == 20


async def test_audit_with_findings_exits_with_status_1(cli: Cli, read_json: ReadJson) -> None:
    await fill(cli, "t")
    await fill(cli, "u", "".join(LINES.splitlines(keepends=True)[:-2]))
    output = (
        await cli("audit", "t", "--against", "u", "--match-by", "key", "--list", "1", status=1)
    ).stdout
    assert "found: 2 missing\nmissing: t-" in output
    assert output.endswith("(not all of them are listed)\n")
    found = await read_json("audit", "t", "--against", "u", status=1)
    assert found["counts"] == {"missing": 2}
    assert {finding["key"] for finding in found["findings"]} == {"k18", "k19"}
    await cli("audit", "t", "--against", "u", "--allow-lag")
    report = await read_json("audit", "u", "--against", "t", "--match-by", "key", status=1)
    assert report["counts"] == {"extra": 2}


async def test_audit_compares_with_topic_of_another_cluster(cli: Cli) -> None:
    await fill(cli, "t")
    async with started() as other:
        other_cluster = "--against-bootstrap", other.bootstrap_servers
        await cli("topic", "create", "t", "--partitions", "2", "-b", other.bootstrap_servers)
        output = (await cli("audit", "t", "--against", "t", *other_cluster, status=1)).stdout
        assert "20 missing" in output
        await cli("topic", "produce", "t", "--json", "-b", other.bootstrap_servers, stdin=LINES)
        await cli("audit", "t", "--against", "t", *other_cluster, "--match-by", "record")


async def test_audit_that_fails_exits_with_status_3(cli: Cli, tmp_path: Path) -> None:
    assert "does not exist" in (await cli("audit", "nope", status=3)).stderr
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert "refuses" in (await cli("audit", "t", "-b", f"127.0.0.1:{port}", status=3)).stderr
    await cli("topic", "create", "t")
    output = (await cli("audit", "t", "--against-lake", str(tmp_path), status=3)).stderr
    has_pyarrow = importlib.util.find_spec("pyarrow") is not None
    assert ("has no files of topic 't'" if has_pyarrow else "kbroker[spark]") in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--match-by", "key"], "need --against TOPIC"),
        (["--distinct"], "need --against TOPIC"),
        (["--against", "u", "--distinct"], "--distinct needs --match-by FORM"),
        (["--against", "u", "--match-by", "time"], "unknown record identity"),
        (["--against", "u", "--against-lake", "."], "exclude each other"),
        (["--against", "u", "--unique-by", "key"], "--unique-by cannot be combined"),
        (["--unique-by", "header"], "unknown record identity"),
    ],
)
def test_audit_with_invalid_options_exits_with_status_2(arguments: list[str], why: str) -> None:
    assert why in invoke("audit", "t", *arguments, status=2).output


async def test_audit_reports_offsets_of_open_transactions(broker: Broker, cli: Cli) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await wire.ask(
            ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key="x", key_type=1)
        )
        init = request(ApiKey.INIT_PRODUCER_ID, transactional_id="x", transaction_timeout_ms=60_000)
        producer_id = (await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init)).producer_id
        data = sequenced(producer_id, 0, transactional=True)
        row = await produce(wire, topic, data, 12, transactional_id="x")
        assert row.error_code == 0
    assert (
        "1 offsets after the last stable offset were not read because of open transactions"
        in (await cli("audit", "t")).stdout
    )
