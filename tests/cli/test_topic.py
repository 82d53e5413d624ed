"""`kbroker topic` create, list, describe, delete, add-partitions, trim."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from kbroker.broker import Broker
from kbroker.client import topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import Connection
from kbroker.client.errors import TimedOut

from ..brokers import started
from ..commands import Cli, ReadJson


async def test_topic_can_be_created_described_and_deleted(cli: Cli, read_json: ReadJson) -> None:
    done = await cli("topic", "create", "orders", "-p", "3", "-c", "retention.ms=60000")
    assert done.stdout == "orders: created\n"
    (row,) = await read_json("topic", "describe", "orders")
    assert (row["name"], row["replication_factor"]) == ("orders", 1)
    assert row["configs"] == {"retention.ms": "60000"}
    assert [part["partition"] for part in row["partitions"]] == [0, 1, 2]
    assert all(part["leader"] == 1 and part["end_offset"] == 0 for part in row["partitions"])
    added = await cli("topic", "add-partitions", "orders", "2")
    assert added.stdout == "orders: raised from 3 to 5 partitions\n"
    (listed,) = await read_json("topic", "list")
    assert (listed["name"], listed["partitions"], listed["replicas"]) == ("orders", 5, 1)
    assert (await cli("topic", "delete", "--yes", "orders")).stdout == "orders: deleted\n"
    assert await read_json("topic", "list") == []


async def test_add_partitions_accepts_total_number(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "orders", "-p", "3")
    add = ("topic", "add-partitions", "orders")
    possible = await cli(*add, "--total", "6", "--dry-run")
    assert possible.stdout == "orders: can be raised from 3 to 6 partitions\n"
    raised = await cli(*add, "--total", "6")
    assert raised.stdout == "orders: raised from 3 to 6 partitions\n"
    assert (await cli(*add, "--total", "6")).stdout == "orders: has 6 partitions already\n"
    assert "INVALID_PARTITIONS" in (await cli(*add, "--total", "5", status=1)).stderr
    assert (await read_json("topic", "list"))[0]["partitions"] == 6
    for words in ((), ("2", "--total", "8")):
        assert "pass either COUNT or --total" in (await cli(*add, *words, status=2)).stderr


async def test_topic_list_prints_table(cli: Cli) -> None:
    await cli("topic", "create", "orders", "-p", "12")
    await cli("topic", "create", "users")
    text = (await cli("topic", "list")).stdout
    assert text == (
        "NAME    PARTITIONS  REPLICAS\norders          12         1\nusers            1         1\n"
    )
    wide = (await cli("topic", "list", "ord*", "-o", "wide")).stdout.splitlines()
    assert wide[0].split() == [
        *("NAME", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE", "LAG", "GROUPS"),
        *("CLEANUP-POLICY", "TOPIC-ID", "INTERNAL"),
    ]
    assert [line.split()[0] for line in wide[1:]] == ["orders"]
    yaml = (await cli("topic", "list", "users", "-o", "yaml")).stdout
    assert yaml.startswith('- name: "users"\n  partitions: 1\n')
    lines = (await cli("topic", "list", "--json")).stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["orders", "users"]


async def test_rejected_topic_is_named_with_exit_status_1(cli: Cli) -> None:
    await cli("topic", "create", "orders")
    second_output = await cli("topic", "create", "orders", "fresh", status=1)
    assert "fresh: created" in second_output.stdout
    assert "orders: Topic 'orders' already exists; pass --if-not-exists" in second_output.stderr
    assert (await cli("topic", "create", "orders", "--if-not-exists")).stdout == "orders: exists\n"
    wrong = await cli("topic", "create", "x", "-c", "retentoin.ms=1", status=1)
    assert "did you mean retention.ms? `kbroker config explain retention.ms`" in wrong.stderr
    wrong = await cli("topic", "create", "x", "-c", "retention.ms=x", status=1)
    assert "; `kbroker config explain retention.ms` shows the valid values" in wrong.stderr
    wrong = await cli("topic", "create", "x", "-c", "xyzzy=1", status=1)
    assert "xyzzy; docs/reference/configuration.md lists all settings" in wrong.stderr
    assert "`kbroker config explain WORD` finds them by a word" in wrong.stderr
    many = await cli("topic", "create", "x", "-r", "3", status=1)
    assert "kbroker cluster info" in many.stderr
    await cli("topic", "create", "y", "--dry-run")
    await cli("topic", "describe", "y", status=1)
    assert (await cli("topic", "delete", "--yes", "y", "--if-exists")).stdout == ""
    await cli("topic", "create", status=2)


async def test_unknown_topic_suggests_similar_name(cli: Cli) -> None:
    await cli("topic", "create", "orders", "users")
    for command in ("describe", "delete", "trim --before end", "consume", "produce"):
        output = (await cli("topic", *command.split(), "ordres", stdin="x\n", status=1)).stderr
        assert "did you mean 'orders'?" in output
        assert "kbroker topic list" in output


async def test_values_with_units_are_set_as_numbers(cli: Cli, read_json: ReadJson) -> None:
    given = ("-c", "retention.ms=2d", "-c", "segment.bytes=1GB", "-c", "retention.bytes=-1")
    preview = await cli("topic", "create", "t", *given, "--dry-run")
    assert preview.stdout.splitlines() == [
        "t: can be created",
        "  retention.ms=172800000 (2d)",
        "  segment.bytes=1000000000 (1GB)",
    ]
    await cli("topic", "create", "t", *given)
    (row,) = await read_json("topic", "describe", "t")
    configs = {"retention.ms": "172800000", "segment.bytes": "1000000000"}
    assert row["configs"] == configs | {"retention.bytes": "-1"}
    change = ("topic", "alter-config", "t", "--set", "retention.ms=7d")
    preview = await cli(*change, "--dry-run")
    assert "t: set retention.ms=604800000 (7d) (now 172800000 (2d))" in preview.stdout
    await cli(*change)
    (row,) = await read_json("topic", "describe", "t")
    assert row["configs"]["retention.ms"] == "604800000"
    wrong = await cli("topic", "alter-config", "t", "--set", "retention.ms=2w", status=2)
    assert "unknown unit 'w' (valid: ms, s, m, h, d, or a number of ms)" in wrong.stderr


async def test_alter_config_sets_appends_and_deletes_settings(
    cli: Cli, read_json: ReadJson
) -> None:
    await cli("topic", "create", "t", "-c", "retention.bytes=5")
    await cli(
        *("topic", "alter-config", "t", "--set", "retention.ms=1000"),
        *("--yes", "--delete", "retention.bytes", "--append", "cleanup.policy=compact"),
    )
    (row,) = await read_json("topic", "describe", "t")
    assert row["configs"] == {"cleanup.policy": "delete,compact", "retention.ms": "1000"}
    await cli("topic", "alter-config", "t", "--set", "retention.ms=1", "--dry-run")
    assert (await read_json("topic", "describe", "t"))[0]["configs"]["retention.ms"] == "1000"
    wrong = await cli("topic", "alter-config", "t", "--set", "retention.ms=soon", status=1)
    assert "retention.ms" in wrong.stderr
    await cli("topic", "alter-config", "t", status=2)


async def test_topic_list_is_sorted_by_numbers(cli: Cli) -> None:
    await cli("topic", "create", "a", "b", "c", "--partitions", "1")
    await cli("topic", "produce", "b", "x" * 500)
    await cli("topic", "produce", "c", "x", "y", "z")
    await cli("group", "seek", "g", "--to", "start", "--topic", "b")

    async def listed(*options: str) -> list[list[str]]:
        output = (await cli("topic", "list", *options)).stdout
        return [line.split() for line in output.splitlines()]

    assert [row[0] for row in await listed("--sort", "size")] == ["NAME", "b", "c", "a"]
    assert await listed("--sort", "records") == [
        ["NAME", "PARTITIONS", "REPLICAS", "RECORDS"],
        ["c", "1", "1", "3"],
        ["b", "1", "1", "1"],
        ["a", "1", "1", "0"],
    ]
    by_lag = [(row[0], row[-1]) for row in await listed("--sort", "lag")]
    assert by_lag == [("NAME", "LAG"), ("b", "1"), ("a", "-"), ("c", "-")]
    assert await listed("--sort", "name") == await listed()
    wide = await listed("--sort", "records", "-o", "wide")
    assert [row[0] for row in wide] == ["NAME", "c", "b", "a"]


async def test_described_settings_exclude_those_of_broker(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "t", "-c", "retention.bytes=5")
    await cli("config", "set", "log.retention.ms=2d", "--node", "1")
    (row,) = await read_json("topic", "describe", "t")
    assert row["configs"] == {"retention.bytes": "5"}


async def test_describe_configs_shows_defaults_and_sources(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "t", "-c", "retention.bytes=5")
    await cli("config", "set", "log.retention.ms=2d", "--node", "1")
    rows = {row["setting"]: row for row in await read_json("topic", "describe", "t", "--configs")}
    common = {"topic": "t", "setting": "retention.bytes"}
    assert rows["retention.bytes"] == common | {"value": "5", "default": "-1", "source": "topic"}
    common["setting"] = "retention.ms"
    inherited = {"value": "172800000", "default": "172800000", "source": "this broker"}
    assert rows["retention.ms"] == common | inherited
    text = (await cli("topic", "describe", "t", "--configs")).stdout
    assert re.search(r"retention\.ms +172800000 \(2d\) +172800000 \(2d\) +this broker", text)
    missing = await cli("topic", "describe", "u", "--configs", status=1)
    assert "topic 'u' does not exist" in missing.stderr


@pytest.mark.parametrize(
    ("before", "hint"),
    [
        ("@3d", "did you mean @-3d?"),
        ("@+3d", "did you mean @-3d?"),
        ("@2100-01-01", "use end"),
        ("3d", "did you mean @-3d?"),
        ("-3d", "did you mean @-3d?"),
        ("2023-11-14T22:13", "did you mean @2023-11-14T22:13?"),
    ],
)
async def test_trim_before_time_in_future_or_without_sign_is_rejected(
    before: str, hint: str, cli: Cli, read_json: ReadJson, topic: str
) -> None:
    failed = await cli("topic", "trim", topic, "--before", before, "--yes", status=2)
    assert hint in failed.stderr.replace("\n", " ")
    assert (await read_json("topic", "describe", topic))[0]["partitions"][0]["start_offset"] == 0


async def test_trim_preview_states_resolved_time(cli: Cli, topic: str) -> None:
    done = await cli("topic", "trim", topic, "--before", "@1700000001500", "--yes")
    assert done.stderr.splitlines() == [
        "new start offset: first record at or after 2023-11-14 22:13:21.500 UTC",
        f"topic {topic}: delete 2 records",
    ]


async def test_trim_deletes_oldest_records(cli: Cli, read_json: ReadJson, broker: Broker) -> None:
    await cli("topic", "create", "t", "-p", "2")
    await cli("topic", "produce", "t", "-p", "0", stdin="a\nb\nc\n")
    await cli("topic", "produce", "t", "-p", "1", stdin="d\n")
    shown = await read_json("topic", "trim", "t", "--before", "-1", "--dry-run")
    assert [row["records"] for row in shown] == [2, 0]
    assert (await read_json("topic", "describe", "t"))[0]["partitions"][0]["start_offset"] == 0
    rows = await read_json("topic", "trim", "--yes", "t", "--before", "2", "-p", "0")
    assert rows == [
        {
            "topic": "t",
            "partition": 0,
            "start_offset": 0,
            "new_start_offset": 2,
            "records": 2,
            "error": None,
            "dry_run": False,
        }
    ]
    await cli("topic", "trim", "--yes", "t", "--before", "end")
    parts = (await read_json("topic", "describe", "t"))[0]["partitions"]
    assert [part["start_offset"] for part in parts] == [3, 1]
    beyond = await cli("topic", "trim", "--yes", "t", "--before", "99", status=1)
    assert "OFFSET_OUT_OF_RANGE" in beyond.stdout
    assert (
        "no partition 7"
        in (await cli("topic", "trim", "--yes", "t", "--before", "0", "-p7", status=1)).stderr
    )


async def fail_to_wait(*_: object) -> None:
    raise TimedOut("no leader yet")


async def test_create_names_created_and_rejected_topics_if_wait_fails(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "old")
    monkeypatch.setattr("kbroker.client.topics.wait_until_ready", fail_to_wait)
    output = await cli("topic", "create", "new", "old", status=4)
    assert output.stdout == "new: created, but maybe not usable yet\n"
    assert "old: " in output.stderr
    assert "no leader yet" in output.stderr


async def test_add_partitions_says_that_partitions_exist_if_wait_fails(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t", "-p", "1")
    monkeypatch.setattr("kbroker.client.topics.wait_until_ready", fail_to_wait)
    output = await cli("topic", "add-partitions", "t", "2", status=4)
    assert output.stdout == "t: raised from 1 to 3 partitions, but maybe not all usable yet\n"


async def test_trim_reports_partitions_of_unreachable_leader_and_trims_others(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_records, node = topics.delete_records, ClusterClient.node

    async def node_except_2(cluster: ClusterClient, node_id: int) -> Connection:
        if node_id == 2:
            raise ConnectionResetError("closed")
        return await node(cluster, node_id)

    async def while_2_is_away(
        cluster: ClusterClient, offsets: Mapping[tuple[str, int], int]
    ) -> object:
        monkeypatch.setattr(ClusterClient, "node", node_except_2)
        return await delete_records(cluster, offsets)

    async with started(nodes=2) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await cli("topic", "create", "t", "-p", "2", "-r", "1", *bootstrap)
        for partition in ("0", "1"):
            await cli("topic", "produce", "t", "x", "-p", partition, *bootstrap)
        monkeypatch.setattr(topics, "delete_records", while_2_is_away)
        output = await cli(
            *("topic", "trim", "--yes", "t", "--before", "end", "--json", *bootstrap), status=1
        )
        errors = [json.loads(line)["error"] for line in output.stdout.splitlines()]
        assert sorted(map(str, errors)) == ["NETWORK_EXCEPTION", "None"]
