"""kafka-console-producer and kafka-console-consumer: round trip of records."""

from __future__ import annotations

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
