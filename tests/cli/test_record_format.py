"""Formats in which commands print records."""

from __future__ import annotations

from itertools import product

import pytest

from kbroker.broker import Broker
from kbroker.cli.record_format import _line, json_printer
from kbroker.client.consumer import ReadBatch
from kbroker.protocol.records import Record, encode_batch, read_header

from ..commands import Cli
from ..wire import Topic, batch, connected, produce
from .records import lines_of

BYTES = [None, b"", b"text", "h\xe4 \u2713".encode(), b"\xff\x00", b'"\\\n{}']


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_json_output_of_consume_restores_records_byte_for_byte(
    cli: Cli, broker: Broker, codec: str
) -> None:
    headers = [("h", value) for value in BYTES] + [("\udcff", b"")]
    records = [
        Record(key, value, 1_700_000_000_000 + i, headers if i % 5 == 0 else [])
        for i, (key, value) in enumerate((key, value) for key in BYTES for value in BYTES)
    ]
    await cli("topic", "create", "source", "copy", "-p", "2")
    async with connected(broker.endpoint) as wire:
        row = await produce(wire, Topic("source"), batch(records), partition=1)
        assert row.error_code == 0
    printed = await cli("topic", "consume", "source", "-o", ":end", "--json")
    written = await cli("topic", "produce", "copy", "--json", "-z", codec, stdin=printed.stdout)
    assert written.stderr == "36 records written\n"
    second_output = await cli("topic", "consume", "copy", "-o", ":end", "--json")
    assert second_output.stdout.replace('"copy"', '"source"') == printed.stdout
    assert len(lines_of(second_output.stdout)) == len(records)
    codecs = await cli("topic", "consume", "copy", "-o", ":end", "-f", r"%a{compression}\n")
    assert set(codecs.stdout.split()) == {codec}


def test_plain_json_lines_equal_general_ones() -> None:
    """Frequent records have their own, faster code."""
    some = [*BYTES, "\u0085\u2028\udbff".encode(errors="surrogatepass"), b"\x7f", "\x9b".encode()]
    records = [
        Record(key, value, 7, [("h", b"v")] * (index % 3 == 0), index)
        for index, (key, value) in enumerate(product(some, some))
    ]
    header = read_header(encode_batch(records))
    read = ReadBatch(('t"', 3), header, 0, 99, records)
    lines = json_printer(meta_only=False)(read, 0).decode().split("\n")
    assert lines == [_line(read, index)[:-1] for index in range(len(records))] + [""]


async def test_produce_prints_records_with_output_format(cli: Cli) -> None:
    await cli("topic", "create", "t")
    output = await cli(
        *("topic", "produce", "t", "a", "b", "-k", "k", "-t", "1700000000000"),
        *("-f", r"%t/%p@%o %k=%v{hex} %d %i\n"),
    )
    assert output.stdout == "t/0@0 k=61 1700000000000 0\nt/0@1 k=62 1700000000000 1\n"
    unknown = await cli("topic", "produce", "t", "c", "--acks", "0", "-f", "%o")
    assert unknown.stdout == "-1"
    await cli("topic", "produce", "t", "c", "-f", "%?", status=2)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%?", "unknown field %?"),
        (r"\q", "unknown escape"),
        ("%v{rot13}", "unknown encoding"),
        ("%p{big8}", "unknown number format"),
        ("%d{go[2006]}", "unknown time format"),
        ("%a{x}", "%a needs an attribute"),
        ("%v{hex", "unclosed brace"),
        ("%h", "unknown field %h"),
    ],
)
async def test_invalid_template_is_rejected(cli: Cli, template: str, expected: str) -> None:
    await cli("topic", "create", "t")
    assert expected in (await cli("topic", "consume", "t", "-f", template, status=2)).stderr


async def test_template_supports_every_field(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli(
        *("topic", "produce", "t", "-k", "key", "val", "-t", "1700000000000", "-H", "a:1"),
        *("-H", "b:2", "-z", "gzip", "-q"),
    )
    template = (
        r"%t %T|%p %o %e|%k %K|%v %V|%d %d{strftime[%F %T]}|%x %y|%h{<%k=%v{hex}>} %H|"
        r"%a{compression} %a{timestamp-type} %a{transactional-bit} %a{control-bit}|%[ %]|%i|"
        r"%k{hex} %v{base64} %v{base64raw} %V{hex}|%% %{ %}|\t\x41\\\n"
    )
    read = await cli("topic", "consume", "t", "-o", ":end", "-f", template)
    assert read.stdout == (
        "t 1|0 0 0|key 3|val 3|1700000000000 2023-11-14 22:13:20|0 0|<a=31><b=32> 2|"
        "gzip CreateTime 0 0|0 1|0|6b6579 dmFs dmFs 3|% { }|\tA\\\n"
    )
