"""`kbroker replay` against a broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.client.connection import Connection
from kbroker.client.partitioner import partition_of
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..commands import Cli

DAY_MS = 86_400_000


def line(number: int, partition: int, **fields: Any) -> dict[str, Any]:
    return {
        "partition": partition,
        "timestamp": 1_700_000_000_000 + number * 1000,
        "key": f"k{number}",
        "value": json.dumps({"n": number, "kind": "even" if number % 2 == 0 else "odd"}),
        "headers": [{"key": "h", "value": f"{number}"}],
    } | fields


LINES = [
    line(0, 0),
    line(1, 1),
    line(2, 2),
    line(3, 0, key=None),
    line(4, 1, value=None),
    line(5, 2, headers=[{"key": "a", "value_base64": "/wA="}, {"key": "a", "value": None}]),
    line(6, 0, value_base64="/wA=", value=None),
    line(7, 1),
]


def text_of(lines: list[dict[str, Any]]) -> str:
    cleaned = [
        {k: v for k, v in row.items() if k != "value" or "value_base64" not in row} for row in lines
    ]
    return "".join(json.dumps(row) + "\n" for row in cleaned)


@pytest.fixture
async def filled(cli: Cli) -> Cli:
    """Return a function that runs commands; a topic has LINES, another one is empty."""
    await cli("topic", "create", "orders", "copy", "-p", "3")
    await cli("topic", "produce", "orders", "--json", stdin=text_of(LINES))
    return cli


async def rows(cli: Cli, topic: str, *options: str) -> list[dict[str, Any]]:
    """Return the records of a topic, by partition."""
    text = (await cli("topic", "consume", topic, "-o", ":end", *options)).stdout
    found = [json.loads(each) for each in text.splitlines()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


async def numbers(cli: Cli, topic: str) -> list[int]:
    """Return the indexes in LINES of a topic's records, by partition."""
    return [(row["timestamp"] - 1_700_000_000_000) // 1000 for row in await rows(cli, topic)]


async def test_replay_preserves_records_and_partitions(filled: Cli) -> None:
    done = await filled("replay", "orders", "--to-topic", "copy")
    expected = [row | {"topic": "copy"} for row in await rows(filled, "orders")]
    assert await rows(filled, "copy") == expected
    assert "8 records" in done.stderr
    assert [each.split()[:2] for each in done.stdout.splitlines()[1:]] == [
        ["0", "3"], ["1", "3"], ["2", "2"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "1"], [3, 6, 4, 7, 5]),
        (["--from", "+1", "--to", "-1"], [3, 4]),
        (["--from", "@1700000003000", "--to", "@1700000006000"], [3, 4, 5]),
        (["-p", "0", "-p", "2"], [0, 3, 6, 2, 5]),
        (["--filter-key", "[27]$"], [7, 2]),
        (["--filter-value", "odd"], [3, 1, 7, 5]),
        (["--filter-field", "kind=^even$"], [0, 2]),
        (["--filter-header", "h=^[45]$"], [4]),
        (["--where", 'value.n > 1 and value.kind == "odd"'], [3, 7, 5]),
        (["--where", "partition == 1 and offset > 0"], [4, 7]),
        (["--where", 'topic == "orders" and key == "k2"', "--filter-value", "even"], [2]),
        (["--from", "99"], []),
    ],
)
async def test_replay_options_select_records(
    filled: Cli, options: list[str], expected: list[int]
) -> None:
    await filled("replay", "orders", "--to-topic", "copy", *options)
    assert await numbers(filled, "copy") == expected


async def test_replay_where_uses_topic_and_offset_of_ndjson_lines(filled: Cli) -> None:
    printed = (await filled("topic", "consume", "orders", "-o", ":end")).stdout
    where = ("--where", 'topic == "orders" and partition == 1 and offset == 1')
    await filled("replay", "--ndjson", "-", "--to-topic", "copy", *where, stdin=printed)
    assert await numbers(filled, "copy") == [4]
    shown = await filled(
        "replay", "orders", "--ndjson", "-", "--to-topic", "copy", "--dry-run",
        "--where", 'topic == "orders"', stdin='{"value":"x"}\n{"topic":"other","value":"y"}\n',
    )  # fmt: skip
    assert "1 record" in shown.stderr


async def test_replay_where_counts_records_too_large_to_search(cli: Cli) -> None:
    await cli("topic", "create", "t", "copy")
    await cli("topic", "produce", "t", stdin=json.dumps({"a": "x" * 300_000}))
    done = await cli("replay", "t", "--to-topic", "copy", "--where", "value.a == 1")
    assert "--where did not search 1 record completely: too large" in done.stderr
    assert "0 records" in done.stderr


async def test_replay_rejects_malformed_expression(cli: Cli) -> None:
    bad = await cli("replay", "t", "--to-topic", "copy", "--where", "value.n > ", status=2)
    assert "Invalid value for --where" in bad.stderr
    assert "at character 10" in bad.stderr


async def test_replay_to_other_partition_count_partitions_by_key(filled: Cli) -> None:
    await filled("topic", "create", "two", "-p", "2")
    done = await filled("replay", "orders", "--to-topic", "two")
    assert "orders has 3 partitions, two has 2: partitions are selected by the keys" in done.stderr
    found = await rows(filled, "two")
    assert len(found) == 8
    for row in found:
        assert row["partition"] == (partition_of(row["key"].encode(), 2) if row["key"] else 0)
    times = [[row["timestamp"] for row in found if row["partition"] == index] for index in (0, 1)]
    assert times == [sorted(each) for each in times]


async def test_replay_shifts_timestamps(filled: Cli) -> None:
    await filled("replay", "orders", "--to-topic", "copy", "--timestamps", "+1d")
    originals = await rows(filled, "orders")
    shifted = [row["timestamp"] for row in await rows(filled, "copy")]
    assert shifted == [row["timestamp"] + DAY_MS for row in originals]
    await filled("topic", "create", "now", "-p", "3")
    await filled("replay", "orders", "--to-topic", "now", "--timestamps", "now")
    new = [row["timestamp"] for row in await rows(filled, "now")]
    by = new[0] - originals[0]["timestamp"]
    assert new == [row["timestamp"] + by for row in originals]
    assert abs(new[0] / 1000 - time.time()) < 60


async def test_replay_dry_run_writes_nothing(filled: Cli) -> None:
    done = await filled(
        "replay", "orders", "--to-topic", "copy", "--dry-run", "--rate", "2", "--json"
    )
    assert [json.loads(each) for each in done.stdout.splitlines()] == [
        {
            "partition": index,
            "records": count,
            "bytes": size,
            "first_time": f"2023-11-14T22:13:{20 + first}.000Z",
            "last_time": f"2023-11-14T22:13:{20 + last}.000Z",
        }
        for index, count, size, first, last in [
            (0, 3, 59, 0, 6),
            (1, 3, 58, 1, 7),
            (2, 2, 57, 2, 5),
        ]
    ]
    assert "8 records, 174 bytes, would be written to copy, in 3.5 s" in done.stderr
    assert "retention.ms=604800000" in done.stderr
    assert await rows(filled, "copy") == []
    done = await filled("replay", "orders", "--to-topic", "nowhere", "--dry-run", "--speed", "2x")
    assert "in 3.5 s" in done.stderr
    assert "kbroker topic create nowhere -p 3" in done.stderr


async def test_replay_rejects_invalid_requests(filled: Cli, tmp_path: Path) -> None:
    async def replay_errors(*args: str, status: int = 1, stdin: str | None = None) -> str:
        return (await filled("replay", *args, status=status, stdin=stdin)).stderr

    assert "to itself" in await replay_errors("orders", "--to-topic", "orders")
    assert "topic create nowhere -p 3" in await replay_errors("orders", "--to-topic", "nowhere")
    assert "'order' does not exist" in await replay_errors("order", "--to-topic", "copy")
    assert "no partition 7" in await replay_errors("orders", "-p", "7", "--to-topic", "copy")
    assert "name a topic" in await replay_errors("--to-topic", "copy", status=2)
    assert "--rate and --speed" in await replay_errors(
        "orders", "--to-topic", "copy", "--rate", "1", "--speed", "2", status=2
    )
    lines = ("--ndjson", "-", "--to-topic", "copy")
    assert "--to-registry needs --to-schema" in await replay_errors(
        *lines, "--to-registry", "x", status=2
    )
    assert "-X schema.registry.url=URL" in await replay_errors(*lines, "--to-schema", "x", status=2)
    assert "expected http://" in await replay_errors(
        *lines, "--to-schema", "x", "--to-registry", "x", status=2
    )
    for option, text in (("--from", "soon"), ("--timestamps", "soon"), ("--filter-key", "("),
                         ("--speed", "0x"), ("--filter-field", "a")):  # fmt: skip
        assert option[:8] in await replay_errors(
            "orders", "--to-topic", "copy", option, text, status=2
        )
    assert "line 2 of" in await replay_errors(
        "--ndjson", "-", "--to-topic", "copy", stdin='{"key":"a"}\nno\n'
    )
    assert "relative to its start or end" in await replay_errors(
        "--ndjson", "-", "--to", "-1", "--to-topic", "copy"
    )
    assert "line has no offset" in await replay_errors(
        "--ndjson", "-", "--to", "5", "--to-topic", "copy", stdin='{"key":"a"}\n'
    )
    assert "has 3 partitions" in await replay_errors(
        "--ndjson", "-", "--to-topic", "copy", stdin='{"partition":3}\n'
    )
    assert [row["key"] for row in await rows(filled, "copy")] == []
    await filled("replay", "orders", "--to-topic", "orders", "--allow-same-topic")
    assert len(await rows(filled, "orders")) == 16


async def test_replay_reads_ndjson(filled: Cli, tmp_path: Path) -> None:
    printed = (await filled("topic", "consume", "orders", "-o", ":end")).stdout
    await filled("replay", "--ndjson", "-", "--to-topic", "copy", stdin=printed)
    assert await rows(filled, "copy") == [
        row | {"topic": "copy"} for row in await rows(filled, "orders")
    ]
    file = tmp_path / "orders.ndjson"
    file.write_text(printed + '{"topic":"other","value":"x"}\n\n')
    await filled("topic", "create", "part", "-p", "3")
    await filled(
        "replay", "orders", "--ndjson", str(file), "--to-topic", "part", "--from", "1",
        "--to", "@1700000006000", "-p", "0", "-p", "1",
    )  # fmt: skip
    assert await numbers(filled, "part") == [3, 4]


async def test_replay_writes_to_another_cluster(filled: Cli) -> None:
    async with started() as other:
        address = other.bootstrap_servers
        await filled("topic", "create", "orders", "-p", "3", "-b", address)
        await filled(
            "replay", "orders", "--to-topic", "orders", "--to-bootstrap", other.bootstrap_servers
        )
        assert await rows(filled, "orders", "-b", address) == await rows(filled, "orders")


async def test_replay_uses_no_consumer_group(
    filled: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled("topic", "consume", "orders", "-g", "live", "-o", "start", "-n", "2")
    before = (await filled("group", "describe", "live", "-o", "json")).stdout
    requested: set[ApiKey] = set()
    send = Connection._send

    async def record_and_send(self: Connection, key: ApiKey, version: int, message: Any) -> None:
        requested.add(key)
        await send(self, key, version, message)

    monkeypatch.setattr(Connection, "_send", record_and_send)
    await filled("replay", "orders", "--to-topic", "copy")
    monkeypatch.undo()
    assert requested == {
        ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.FETCH, ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID, ApiKey.DESCRIBE_CONFIGS,
    }  # fmt: skip
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    assert (await filled("group", "describe", "live", "-o", "json")).stdout == before
    assert len((await filled("group", "list")).stdout.splitlines()) == 2
