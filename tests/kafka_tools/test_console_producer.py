"""kafka-console-producer and kafka-console-consumer: round trip of records."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker

from ..commands import Cli


async def test_console_tools_restore_keys_headers_and_nulls(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "lines")
    reader = ("parse.key=true", "parse.headers=true", "null.marker=NULL", "key.separator=:")
    arguments = [word for each in reader for word in ("--property", each)]
    await cli(
        "compat", "kafka-console-producer", *server, *arguments, stdin="h:1\ta:b\nNULL\tNULL:NULL\n"
    )
    shown = ("print.key=true", "print.headers=true", "print.offset=true")
    arguments = [word for each in shown for word in ("--formatter-property", each)]
    read = await cli(
        *("compat", "kafka-console-consumer", *server, *arguments),
        *("--from-beginning", "--max-messages", "2"),
    )
    assert read.stdout == "Offset:0\th:1\ta\tb\nOffset:1\tNO_HEADERS\tnull\tnull\n"
    assert read.stderr == "Processed a total of 2 messages\n"


async def test_console_producer_that_fails_says_which_lines_are_written(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.client.lines.READ_BYTES", 4)
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t")
    reader = ("--property", "parse.key=true", "--property", "key.separator=:")
    command = ("compat", "kafka-console-producer", *server, *reader)
    output = await cli(*command, stdin="a:b\na:b\nbad\n", status=1)
    assert "No key separator found on line number 3" in output.stderr
    assert "the input was written up to line 2; continue after it" in output.stderr
