"""`kbroker config set`, `unset` and `show --node`: settings of running brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..commands import Cli

NODE = ("--node", "1")


async def settings(cli: Cli, *whose: str) -> dict[str, Any]:
    """Return the settings that are set dynamically, with their sources."""
    output = (await cli("config", "show", *whose, "--diff", "--json")).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    return {row["name"]: (row["value"], row["source"]) for row in rows if row["source"] != "static"}


async def test_setting_of_one_broker_overrides_cluster_default(cli: Cli) -> None:
    output = await cli("config", "set", "log.retention.ms=5000", "num.io.threads=9", "--default")
    assert output.stdout == "all brokers: changed\n"
    output = await cli("config", "set", "log.retention.ms=7000", *NODE)
    assert output.stdout == "broker 1: changed\n"
    of_all = {"log.retention.ms": ("5000", "all brokers"), "num.io.threads": ("9", "all brokers")}
    assert await settings(cli, "--default") == of_all
    own = {"log.retention.ms": ("7000", "this broker"), "num.io.threads": ("9", "all brokers")}
    assert await settings(cli, *NODE) == own
    await cli("config", "unset", "--yes", "log.retention.ms", *NODE)
    assert await settings(cli, *NODE) == of_all
    await cli("config", "unset", "--yes", "log.retention.ms", "num.io.threads", "--default")
    assert await settings(cli, *NODE) == {}


async def test_config_set_dry_run_changes_nothing(cli: Cli) -> None:
    output = await cli("config", "set", "log.retention.ms=5s", *NODE, "--dry-run")
    assert output.stdout == "broker 1: the settings are valid\n  log.retention.ms=5000 (5s)\n"
    assert await settings(cli, *NODE) == {}
    bad = await cli("config", "set", "log.retention.ms=soon", *NODE, "--dry-run", status=1)
    assert "soon" in bad.stderr
    bad = await cli("config", "set", "log.retention.ms=2w", *NODE, status=2)
    assert "unknown unit 'w' (valid: ms, s, m, h, d, or a number of ms)" in bad.stderr


async def test_config_set_accepts_values_with_units(cli: Cli) -> None:
    await cli("config", "set", "log.retention.ms=2h", "log.segment.bytes=64MiB", *NODE)
    assert await settings(cli, *NODE) == {
        "log.retention.ms": ("7200000", "this broker"),
        "log.segment.bytes": ("67108864", "this broker"),
    }


@pytest.mark.parametrize("whose", [NODE, ("--default",)])
@pytest.mark.parametrize("change", [("set", "node.id=4"), ("unset", "node.id")])
async def test_change_of_read_only_setting_is_rejected(
    cli: Cli, whose: tuple[str, ...], change: tuple[str, ...]
) -> None:
    output = await cli("config", *change, *whose, status=1)
    assert "node.id is read-only: a broker reads it at its start" in output.stderr
    assert "see `kbroker config explain node.id`" in output.stderr


async def test_unknown_broker_setting_suggests_similar_name(cli: Cli) -> None:
    output = await cli("config", "set", "log.retention.m=5", *NODE, status=1)
    assert "did you mean 'log.retention.ms'?" in output.stderr


@pytest.mark.parametrize("whose", [(), ("--node", "1", "--default")])
async def test_config_set_requires_node_or_default(cli: Cli, whose: tuple[str, ...]) -> None:
    output = await cli("config", "set", "log.retention.ms=5", *whose, status=2)
    assert "--node ID for one broker, or --default" in output.stderr


async def test_config_set_of_missing_broker_fails(cli: Cli) -> None:
    output = await cli("config", "set", "log.retention.ms=5", "--node", "7", status=1)
    assert "broker 7 does not exist (valid: 1)" in output.stderr
