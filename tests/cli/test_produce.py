"""The `kbroker topic produce` command."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from kbroker.testing import LocalBroker

from ..commands import KBROKER, Cli
from .records import lines_of, values_in


async def test_produce_writes_one_record_per_line(cli: Cli) -> None:
    await cli("topic", "create", "t")
    output = (
        await cli("topic", "produce", "t", "-k", "k", "-H", "a:1:2", stdin="x\n\nlast")
    ).stdout
    assert output.splitlines()[0].startswith("Produced to partition 0 at offset 0 with timestamp ")
    assert len(output.splitlines()) == 3
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [
        ("k", "x", 0),
        ("k", "", 1),
        ("k", "last", 2),
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": "1:2"}]
    assert abs(rows[0]["timestamp"] / 1000 - time.time()) < 60


async def test_produce_supports_values_tombstones_and_delimiters(cli: Cli) -> None:
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
    failed = await cli("topic", "produce", "t", "-d:", stdin="x\n", status=1)
    assert "line 1 has no delimiter ':'" in failed.stderr


async def test_produce_accepts_escapes_in_the_delimiter(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "-d", r"\t", stdin="a\t1\nb\\t\t2\n")
    await cli("topic", "produce", "t", "-d", r"\x1f|", stdin="c\x1f|3\n")
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert [(row["key"], row["value"]) for row in rows] == [("a", "1"), ("b\\t", "2"), ("c", "3")]
    failed = await cli("topic", "produce", "t", "-d", r"\t", stdin="x\n", status=1)
    assert r"line 1 has no delimiter '\t'" in failed.stderr
    refused = await cli("topic", "produce", "t", "-d", r"\q", stdin="x\n", status=2)
    assert r"unknown escape \q" in refused.stderr


async def test_produce_json_accepts_partial_lines(cli: Cli) -> None:
    await cli("topic", "create", "t", "-p", "3")
    lines = '{"topic": "t", "value": {"a": [1]}}\n\n{"topic": "t", "key": "k", "partition": 2}\n'
    await cli("topic", "produce", "--json", stdin=lines)
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    by_key = {row["key"]: row for row in rows}
    assert by_key[None]["value"] == '{"a":[1]}'
    assert (by_key["k"]["partition"], by_key["k"]["value"]) == (2, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nonsense", "line 2: invalid JSON"),
        ("[1]", "must be an object"),
        ('{"valeu": 1}', "unknown field 'valeu'"),
        ('{"value": "a", "value_base64": "YQ=="}', "mutually exclusive"),
        ('{"value_base64": "%"}', "invalid base64"),
        ('{"timestamp": "today"}', "must be an integer"),
        ('{"headers": [{"value": "x"}]}', "each header must have a key"),
        ('{"partition": 9}', "t has no partition 9, it has 1"),
    ],
)
async def test_produce_json_reports_number_of_invalid_line(
    cli: Cli, line: str, expected: str
) -> None:
    await cli("topic", "create", "t")
    output = await cli(
        "topic", "produce", "t", "--json", stdin=f'{{"value": "a"}}\n{line}\n', status=1
    )
    assert expected in output.stderr


async def test_produce_partitions_keys_like_java_producer(cli: Cli) -> None:
    await cli("topic", "create", "t", "-p", "7")
    await cli("topic", "produce", "t", "-d:", stdin="".join(f"key-{i}:x\n" for i in range(8)))
    rows = lines_of((await cli("topic", "consume", "t", "-o", ":end")).stdout)
    assert {row["key"]: row["partition"] for row in rows} == JAVA_SAYS


# murmur2 of kafka-python returns the same partitions.
JAVA_SAYS = {f"key-{i}": at for i, at in enumerate([0, 5, 4, 4, 5, 4, 5, 3])}


async def test_produce_reads_lines_across_chunks_up_to_limit(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.client.lines.READ_BYTES", 5)
    monkeypatch.setattr("kbroker.client.lines.LINE_BYTES_MAX", 20)
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", stdin="0123456789\n\nab\n0123\n01234")
    assert await values_in(cli, "t") == ["0123456789", "", "ab", "0123", "01234"]
    output = await cli("topic", "produce", "t", stdin="x" * 40, status=1)
    assert "is longer than" in output.stderr


async def test_produce_of_too_large_record_names_topic_setting(cli: Cli) -> None:
    await cli("topic", "create", "t", "-c", "max.message.bytes=1000")
    output = await cli("topic", "produce", "t", "x" * 2000, status=1)
    assert "MESSAGE_TOO_LARGE" in output.stderr
    assert "--set max.message.bytes" in output.stderr


@pytest.mark.slow
def test_produce_prompts_on_terminal() -> None:
    """The lines are typed on a terminal, of which this test has the other end."""
    pty = pytest.importorskip("pty")  # POSIX
    with LocalBroker(topics={"t": 1}) as broker:
        person, terminal = pty.openpty()
        command = [*KBROKER, "topic", "produce", "t", "-q", "-b", broker.bootstrap_servers]
        process = subprocess.Popen(command, stdin=terminal, stderr=subprocess.PIPE)
        os.write(person, b"first\nsecond\n\x04")
        _, printed = process.communicate(timeout=60)
        os.close(person)
        os.close(terminal)
        assert printed.startswith(b"one record per line; Ctrl+D ends\n> ")
        assert [each.value for each in broker.records("t")] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("bad_line", "written"), [(3, "up to line 2; continue"), (1, "no line of the input was")]
)
async def test_produce_that_fails_says_which_lines_are_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, bad_line: int, written: str
) -> None:
    monkeypatch.setattr("kbroker.client.lines.READ_BYTES", 4)
    await cli("topic", "create", "t")
    lines = [b"a:b"] * 4
    lines[bad_line - 1] = b"abc"
    output = await cli("topic", "produce", "t", "-d:", stdin=b"\n".join(lines), status=1)
    assert written in output.stderr
    assert len(await values_in(cli, "t")) == bad_line - 1


async def test_produce_whose_write_fails_says_that_lines_may_be_written(cli: Cli) -> None:
    await cli("topic", "create", "t", "-c", "max.message.bytes=1000")
    output = await cli("topic", "produce", "t", stdin="x" * 2000, status=1)
    assert "up to line 0, and maybe some of the following lines" in output.stderr


async def test_produce_writes_all_input_if_its_output_is_closed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> bytes:
        raise BrokenPipeError

    await cli("topic", "create", "t")
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.client.lines.READ_BYTES", 2)
        patch.setattr("kbroker.cli.record_format.template_printer", lambda _: closed)
        patch.setattr("kbroker.cli.produce.discard_output", lambda: None)
        await cli("topic", "produce", "t", stdin="a\nb\nc\n")
    assert len(await values_in(cli, "t")) == 3
