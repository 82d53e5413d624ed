"""`kbroker topic produce` and `consume`: what goes in comes out, byte for byte."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.records import Record

from ..commands import Cli, ReadJson
from ..wire import Topic, batch, connected, produce

BYTES = [None, b"", b"text", "h\xe4 \u2713".encode(), b"\xff\x00", b'"\\\n{}']


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def values_in(cli: Cli, topic: str, *flags: str) -> list[str | None]:
    read = await cli("topic", "consume", topic, "-o", ":end", *flags)
    return [row["value"] for row in lines_of(read.stdout)]


async def test_lines_become_records(cli: Cli) -> None:
    await cli("topic", "create", "t")
    said = (await cli("topic", "produce", "t", "-k", "k", "-H", "a:1:2", stdin="x\n\nlast")).stdout
    assert said.splitlines()[0].startswith("Produced to partition 0 at offset 0 with timestamp ")
    assert len(said.splitlines()) == 3
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [
        ("k", "x", 0),
        ("k", "", 1),
        ("k", "last", 2),
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": "1:2"}]
    assert abs(rows[0]["timestamp"] / 1000 - time.time()) < 60


async def test_values_tombstones_and_delimiters(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "one", "two", "-q")
    await cli("topic", "produce", "t", "-k", "gone", "-Z")
    await cli("topic", "produce", "t", "-d", "=", "-t", "2026-01-02", stdin="a=1\nb=\n")
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert [(row["key"], row["value"]) for row in rows] == [
        (None, "one"),
        (None, "two"),
        ("gone", None),
        ("a", "1"),
        ("b", ""),
    ]
    assert rows[-1]["timestamp"] == 1767312000000
    assert (
        "line 1 has no" in (await cli("topic", "produce", "t", "-d:", stdin="x\n", status=1)).stderr
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_json_goes_round_byte_for_byte(cli: Cli, broker: Broker, codec: str) -> None:
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
    again = await cli("topic", "consume", "copy", "-o", ":end", "--json")
    assert again.stdout.replace('"copy"', '"source"') == printed.stdout
    assert len(lines_of(again.stdout)) == len(records)
    codecs = await cli("topic", "consume", "copy", "-o", ":end", "-f", r"%a{compression}\n")
    assert set(codecs.stdout.split()) == {codec}


async def test_lines_of_json_may_say_little(cli: Cli) -> None:
    await cli("topic", "create", "t", "-p", "3")
    lines = '{"topic": "t", "value": {"a": [1]}}\n\n{"topic": "t", "key": "k", "partition": 2}\n'
    await cli("topic", "produce", "--json", stdin=lines)
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    by_key = {row["key"]: row for row in rows}
    assert by_key[None]["value"] == '{"a":[1]}'
    assert (by_key["k"]["partition"], by_key["k"]["value"]) == (2, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "line 2: this is not JSON"),
        ("[1]", "must be an object"),
        ('{"valeu": 1}', "unknown field 'valeu'"),
        ('{"value": "a", "value_base64": "YQ=="}', "exclude each other"),
        ('{"value_base64": "%"}', "not base64"),
        ('{"timestamp": "today"}', "whole number"),
        ('{"headers": [{"value": "x"}]}', "a header needs a key"),
        ('{"partition": 9}', "t has no partition 9, it has 1"),
    ],
)
async def test_a_bad_line_is_named(cli: Cli, line: str, words: str) -> None:
    await cli("topic", "create", "t")
    said = await cli(
        "topic", "produce", "t", "--json", stdin=f'{{"value": "a"}}\n{line}\n', status=1
    )
    assert words in said.stderr


async def test_places(cli: Cli) -> None:
    await cli("topic", "create", "t")
    for number in range(5):
        await cli(
            "topic", "produce", "t", str(number), "-t", f"{1_700_000_000_000 + number * 1000}"
        )
    for places, wanted in {
        ":end": "01234",
        ":3": "012",
        "1:3": "12",
        "+1:end": "1234",
        "-2:end": "34",
        "@1700000002000:end": "234",
        "@1700000001000:2s": "12",
        "@2023-11-14T22:13:21Z:2023-11-14T22:13:23Z": "12",
        "@:1700000001": "0",
        "3:2": "",
    }.items():
        read = await cli("topic", "consume", "t", "-o", places, "-f", "%v")
        assert read.stdout == wanted, places
    assert await values_in(cli, "t", "-n", "2") == ["0", "1"]
    first = await cli("topic", "consume", "t", "--from-beginning", "-n", "1", "-f", "%v")
    assert first.stdout == "0"
    await cli("topic", "consume", "t", "-o", "nowhere", status=2)
    gone = await cli("topic", "consume", "t", "-o", "77", status=1)
    assert "does not have offset 77" in gone.stderr


async def test_waiting_comes_to_an_end(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "early")
    said = await cli("topic", "consume", "t", "--timeout", "200ms", status=4)
    assert "0 records came in time" in said.stderr
    read = await cli(
        "topic", "consume", "t", "--from-beginning", "-n2", "--timeout", "300ms", status=4
    )
    assert lines_of(read.stdout)[0]["value"] == "early"


async def test_a_group_goes_on_where_it_stopped(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", *"abcde")
    read = ("topic", "consume", "t", "-g", "g", "-f", "%v")
    assert (await cli(*read, "--from-beginning", "-n", "2")).stdout == "ab"
    (row,) = (await read_json("group", "describe", "g"))[0]["partitions"]
    assert row["current_offset"] == 2
    assert (await cli(*read, "-n", "1")).stdout == "c"
    assert (await cli(*read, "-o", ":end")).stdout == "de"
    await cli("group", "seek", "g", "--to", "1")
    await cli("topic", "trim", "t", "--before", "3")
    assert (await cli(*read, "-o", ":end")).stdout == "de"


async def test_topics_by_pattern(cli: Cli) -> None:
    await cli("topic", "create", "a1", "a2", "b1")
    for name in ("a1", "a2", "b1"):
        await cli("topic", "produce", name, name)
    assert sorted(map(str, await values_in(cli, "a.", "-r"))) == ["a1", "a2"]
    assert "matches zz" in (await cli("topic", "consume", "zz", "-r", status=1)).stderr


async def test_keys_go_where_java_puts_them(cli: Cli) -> None:
    await cli("topic", "create", "t", "-p", "7")
    await cli("topic", "produce", "t", "-d:", stdin="".join(f"key-{i}:x\n" for i in range(8)))
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert {row["key"]: row["partition"] for row in rows} == JAVA_SAYS


# What murmur2 in kafka-python says too.
JAVA_SAYS = {f"key-{i}": at for i, at in enumerate([0, 5, 4, 4, 5, 4, 5, 3])}


async def test_long_lines(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.client.lines.READ_BYTES", 5)
    monkeypatch.setattr("kbroker.client.lines.LINE_BYTES_MAX", 20)
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", stdin="0123456789\n\nab\n0123\n01234")
    assert await values_in(cli, "t") == ["0123456789", "", "ab", "0123", "01234"]
    said = await cli("topic", "produce", "t", stdin="x" * 40, status=1)
    assert "is no record" in said.stderr


async def test_a_record_that_is_too_large(cli: Cli) -> None:
    await cli("topic", "create", "t", "-c", "max.message.bytes=1000")
    said = await cli("topic", "produce", "t", "x" * 2000, status=1)
    assert "MESSAGE_TOO_LARGE" in said.stderr
    assert "--set max.message.bytes" in said.stderr


async def test_what_is_said_of_a_record(cli: Cli) -> None:
    await cli("topic", "create", "t")
    said = await cli(
        *("topic", "produce", "t", "a", "b", "-k", "k", "-t", "1700000000000"),
        *("--output-format", r"%t/%p@%o %k=%v{hex} %d %i\n"),
    )
    assert said.stdout == "t/0@0 k=61 1700000000000 0\nt/0@1 k=62 1700000000000 1\n"
    unknown = await cli("topic", "produce", "t", "c", "--acks", "0", "--output-format", "%o")
    assert unknown.stdout == "-1"
    await cli("topic", "produce", "t", "c", "--output-format", "%?", status=2)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("%?", "unknown field %?"),
        (r"\q", "unknown escape"),
        ("%v{rot13}", "unknown encoding"),
        ("%p{big8}", "unknown form of a number"),
        ("%d{go[2006]}", "unknown form of a time"),
        ("%a{x}", "%a takes one of"),
        ("%v{hex", "is not closed"),
        ("%h", "unknown field %h"),
    ],
)
async def test_templates_that_cannot_be_read(cli: Cli, template: str, words: str) -> None:
    await cli("topic", "create", "t")
    assert words in (await cli("topic", "consume", "t", "-f", template, status=2)).stderr


async def test_every_field_of_a_template(cli: Cli) -> None:
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


async def test_filters(cli: Cli) -> None:
    """The count is of what is printed; a group is done with what was left out, too."""
    await cli("topic", "create", "t")
    lines = [f'{{"key": "k{n}", "value": {{"n": {n}}}}}\n' for n in range(10)]
    await cli("topic", "produce", "t", "--json", stdin="".join(lines))
    odd = ("--filter-field", "n=[13579]$", "-f", r"%k\n")
    assert (await cli("topic", "consume", "t", "-o", ":end", *odd)).stdout.split() == [
        "k1", "k3", "k5", "k7", "k9",
    ]  # fmt: skip
    read = await cli("topic", "consume", "t", "-g", "g", "-o", "start", "-n", "2", *odd)
    assert read.stdout.split() == ["k1", "k3"]
    read = await cli("topic", "consume", "t", "-g", "g", "-o", ":end", "-f", "%k", "-n", "1")
    assert read.stdout == "k4"
    bad = await cli("topic", "consume", "t", "--filter-key", "(", status=2)
    assert "no regular expression" in bad.stderr


@pytest.mark.parametrize(
    ("value", "settings", "is_explained"),
    [
        (b"\0\0\0\0\7rest\xff", ["-X", "schema.registry.url=http://localhost:8081"], True),
        (b"plain text", ["-X", "schema.registry.url=http://localhost:8081"], False),
        (b"\0\0\0\0\7rest\xff", [], False),
    ],
)
async def test_consume_names_what_decodes_records_with_a_schema(
    value: bytes, settings: list[str], is_explained: bool, cli: Cli
) -> None:
    await cli("topic", "create", "t")
    line = json.dumps({"topic": "t", "value_base64": base64.b64encode(value).decode()})
    await cli("topic", "produce", "t", "--json", stdin=f"{line}\n{line}\n")
    read = await cli(*settings, "topic", "consume", "t", "-o", "start:end")
    assert read.stderr.count("records of t begin with a schema ID") == is_explained
    assert ("schema.registry.url" in read.stderr) is is_explained
    assert len(read.stdout.splitlines()) == 2
