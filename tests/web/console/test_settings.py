"""Settings of topics, brokers and groups in the console."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.configs import Operation, Resource, alter_configs

from .consoles import Console, console

TOPIC, NODE, ALL = "/topics/t/config", "/brokers/1/config", "/brokers/default/config"


async def setting(client: Console, path: str, name: str) -> Any:
    (row,) = [each for each in (await client.get(path))["configs"] if each["name"] == name]
    return row


async def change(client: Console, path: str, **body: object) -> Any:
    response = await client.post(path, body)
    assert response.status == 200, response.text
    return response.json()["changes"]


async def test_topic_setting_is_listed_with_limits_and_documentation() -> None:
    async with console() as client:
        await client.create_topic("t")
        assert (await client.get(TOPIC))["may"] == ["ALTER_CONFIGS"]
        row = await setting(client, TOPIC, "retention.ms")
        assert row["value"] == row["default"] == row["fallback"] == "604800000"
        assert (row["type"], row["unit"], row["source"]) == ("long", "ms", "default")
        assert row["allowed"] == "an integer of at least -1"
        assert not row["overridden"]
        assert not row["read_only"]
        assert row["has_effect"]
        assert "retention" in row["doc"].lower() or "kept" in row["doc"]
        row = await setting(client, TOPIC, "compression.type")
        assert "zstd" in row["choices"]
        row = await setting(client, TOPIC, "preallocate")
        assert row["choices"] == ["true", "false"]


async def test_topic_setting_is_set_and_unset_after_preview() -> None:
    async with console(log_retention_ms=5000) as client:
        await client.create_topic("t")
        preview = await change(client, TOPIC, set={"retention.ms": "1000"})
        row = {"name": "retention.ms", "unit": "ms", "sensitive": False}
        old = {"old_value": "5000", "old_source": "static"}
        new = {"new_value": "1000", "new_source": "topic"}
        assert preview == [row | old | new]
        assert (await setting(client, TOPIC, "retention.ms"))["value"] == "5000"
        await change(client, TOPIC, set={"retention.ms": "1000"}, dry_run=False)
        found = await setting(client, TOPIC, "retention.ms")
        assert (found["value"], found["overridden"], found["fallback"]) == ("1000", True, "5000")
        preview = await change(client, TOPIC, unset=["retention.ms"])
        assert (preview[0]["old_value"], preview[0]["new_value"]) == ("1000", "5000")
        assert (preview[0]["old_source"], preview[0]["new_source"]) == ("topic", "static")
        await change(client, TOPIC, unset=["retention.ms"], dry_run=False)
        assert (await setting(client, TOPIC, "retention.ms"))["overridden"] is False


@pytest.mark.parametrize(
    ("path", "name", "text", "number", "unit"),
    [
        (TOPIC, "segment.bytes", "1GiB", "1073741824", "bytes"),
        (NODE, "log.retention.ms", "2d", "172800000", "ms"),
        ("/groups/g/config", "consumer.session.timeout.ms", "50s", "50000", "ms"),
    ],
)
async def test_value_with_unit_is_set_as_number(
    path: str, name: str, text: str, number: str, unit: str
) -> None:
    async with console() as client:
        await client.create_topic("t")
        (row,) = await change(client, path, set={name: text})
        assert (row["new_value"], row["unit"]) == (number, unit)
        await change(client, path, set={name: text}, dry_run=False)
        assert (await setting(client, path, name))["value"] == number


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (TOPIC, {}, 400, "pass settings to change"),
        (TOPIC, {"set": {"retention.ms": 5}}, 400, "set must contain strings only"),
        (TOPIC, {"set": []}, 400, "set must be an object"),
        (TOPIC, {"unset": "retention.ms"}, 400, "unset must be a list"),
        (TOPIC, {"set": {"a": "1"}, "unset": ["a"]}, 400, "a is in both set and unset"),
        (TOPIC, {"set": {"retention.ms": "x"}}, 400, "expected an integer of at least -1"),
        (TOPIC, {"set": {"retention.ms": "2w"}}, 400, "(valid: ms, s, m, h, d, "),
        (TOPIC, {"set": {"retention.mss": "1"}}, 400, "did you mean retention.ms"),
        ("/topics/absent/config", {"set": {"retention.ms": "1"}}, 404, "UNKNOWN_TOPIC"),
        (NODE, {"set": {"node.id": "2"}}, 400, "node.id is read-only"),
        (NODE, {"set": {"log.retention.mss": "1"}}, 400, "did you mean 'log.retention.ms'"),
        ("/brokers/9/config", {"set": {"log.retention.ms": "1"}}, 404, "(valid: 1)"),
        ("/brokers/x/config", {"set": {"log.retention.ms": "1"}}, 404, "must be an integer"),
        ("/groups/g/config", {"set": {"share.delivery.count.limit": "0"}}, 400, "at least 2"),
    ],
)
async def test_invalid_change_of_settings_is_rejected_by_preview(
    path: str, body: object, status: int, error: str
) -> None:
    async with console() as client:
        await client.create_topic("t")
        response = await client.post(path, body)
        assert (response.status, error in response.json()["error"]) == (status, True), response.text


async def test_broker_setting_is_set_for_one_node_and_for_all() -> None:
    async with console() as client:
        name = "log.retention.ms"
        assert (await client.get(ALL))["brokers"] == (await client.get(NODE))["brokers"] == [1]
        assert (await setting(client, ALL, name))["value"] is None
        await change(client, ALL, set={name: "7000"}, dry_run=False)
        row = await setting(client, ALL, name)
        assert (row["value"], row["source"], row["overridden"]) == ("7000", "all brokers", True)
        row = await setting(client, NODE, name)
        assert (row["value"], row["source"], row["overridden"]) == ("7000", "all brokers", False)
        preview = await change(client, NODE, set={name: "9000"})
        assert (preview[0]["old_value"], preview[0]["new_value"]) == ("7000", "9000")
        await change(client, NODE, set={name: "9000"}, dry_run=False)
        row = await setting(client, NODE, name)
        assert (row["value"], row["fallback"], row["overridden"]) == ("9000", "7000", True)
        preview = await change(client, NODE, unset=[name])
        assert (preview[0]["new_value"], preview[0]["new_source"]) == ("7000", "all brokers")


async def test_setting_of_another_node_is_changed() -> None:
    async with console(nodes=3) as client:
        path, name = "/brokers/3/config", "log.retention.ms"
        assert (await client.get(path))["brokers"] == [1, 2, 3]
        await change(client, path, set={name: "9000"}, dry_run=False)
        assert (await setting(client, path, name))["value"] == "9000"
        assert (await setting(client, NODE, name))["overridden"] is False


async def test_broker_settings_contain_read_only_and_no_secret_values() -> None:
    async with console(ssl_key_password="hush") as client:
        response = await client.ask(NODE)
        assert "hush" not in response.text
        row = await setting(client, NODE, "ssl.key.password")
        assert (row["sensitive"], row["value"], row["default"]) == (True, None, None)
        assert (await setting(client, NODE, "node.id"))["read_only"] is True
        listed = (await client.get(ALL))["configs"]
        assert "node.id" not in [each["name"] for each in listed]
        name = "listener.name.plaintext.ssl.key.password"
        preview = await change(client, NODE, set={name: "secret"})
        assert (preview[0]["sensitive"], preview[0]["new_value"]) == (True, None)


async def test_group_setting_is_set_and_unset() -> None:
    async with console() as client:
        path, name = "/groups/g%2F1/config", "share.delivery.count.limit"
        changes = {"share.auto.offset.reset": (Operation.SET, "earliest")}
        await alter_configs(client.cluster, Resource.GROUP, "g/1", changes)
        assert (await setting(client, path, "share.auto.offset.reset"))["value"] == "earliest"
        await change(client, path, set={name: "4"}, dry_run=False)
        row = await setting(client, path, name)
        assert (row["value"], row["source"], row["fallback"]) == ("4", "group", "5")
        (preview,) = await change(client, path, unset=[name], dry_run=False)
        assert preview["new_value"] == "5"
        assert (await setting(client, path, name))["overridden"] is False


async def test_settings_of_read_only_console_cannot_be_changed() -> None:
    async with console(http_host="0.0.0.0") as client:
        await client.create_topic("t")
        for path in (TOPIC, NODE, ALL, "/groups/g/config"):
            assert (await client.get(path))["may"] == []
            assert (await client.post(path, {"set": {"retention.ms": "1"}})).status == 403
