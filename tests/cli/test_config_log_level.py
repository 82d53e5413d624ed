"""`kbroker config log-level`: log levels of running brokers."""

from __future__ import annotations

import logging

import pytest

from ..commands import Cli, ReadJson


async def test_log_level_changes_and_resets_level_of_broker(cli: Cli, read_json: ReadJson) -> None:
    network = logging.getLogger("kbroker.net")
    inherited = next(
        row["level"]
        for row in await read_json("config", "log-level")
        if row["logger"] == "kbroker.net"
    )
    assert await read_json("config", "log-level", "kbroker.net=debug") == [
        {"node": 1, "logger": "kbroker.net", "level": "DEBUG"}
    ]
    assert network.level == logging.DEBUG
    shown = (await cli("config", "log-level", "kbroker.net=warning", "--node", "1")).stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["NODE", "LOGGER", "LEVEL"],
        ["1", "kbroker.net", "WARN"],
    ]
    reset = await read_json("config", "log-level", "--reset", "kbroker.net")
    assert reset == [{"node": 1, "logger": "kbroker.net", "level": inherited}]
    assert network.level == logging.NOTSET


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("kbroker.nett=DEBUG", 1, "logger 'kbroker.nett' does not exist; did you mean 'kbroker.ne"),
        ("kbroker.net=LOUD", 1, "Invalid log level 'LOUD' of kbroker.net (valid: TRACE, DEBUG,"),
        ("kbroker.net", 2, "write LOGGER=LEVEL, such as kbroker.net=DEBUG"),
        ("--reset root", 1, "Removing the log level of the root logger is not allowed"),
        ("--node 7", 1, "broker 7 does not exist (valid: 1)"),
    ],
)
async def test_log_level_rejects_invalid_arguments(
    cli: Cli, arguments: str, status: int, message: str
) -> None:
    assert message in (await cli("config", "log-level", *arguments.split(), status=status)).stderr
