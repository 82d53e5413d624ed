"""`kbroker topic consume`: offsets, groups, filters and patterns."""

from __future__ import annotations

import base64
import json

import pytest

from kbroker.cli.consume import waiting_text

from ..commands import Cli, ReadJson
from .records import lines_of, values_in


async def test_consume_with_timeout_exits_with_status_4(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "early")
    output = await cli("topic", "consume", "t", "--timeout", "200ms", status=4)
    assert "timed out after 0 records" in output.stderr
    read = await cli(
        "topic", "consume", "t", "--from-beginning", "-n2", "--timeout", "300ms", status=4
    )
    assert lines_of(read.stdout)[0]["value"] == "early"


async def test_consume_with_group_resumes_at_committed_offset(
    cli: Cli, read_json: ReadJson
) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", *"abcde")
    read = ("topic", "consume", "t", "-g", "g", "-f", "%v")
    assert (await cli(*read, "--from-beginning", "-n", "2")).stdout == "ab"
    (row,) = (await read_json("group", "describe", "g"))[0]["partitions"]
    assert row["current_offset"] == 2
    assert (await cli(*read, "-n", "1")).stdout == "c"
    assert (await cli(*read, "-o", ":end")).stdout == "de"
    await cli("group", "seek", "--yes", "g", "--to", "1")
    await cli("topic", "trim", "--yes", "t", "--before", "3")
    assert (await cli(*read, "-o", ":end")).stdout == "de"


async def test_consume_with_regex_reads_matching_topics(cli: Cli) -> None:
    await cli("topic", "create", "a1", "a2", "b1")
    for name in ("a1", "a2", "b1"):
        await cli("topic", "produce", name, name)
    assert sorted(map(str, await values_in(cli, "a.", "-r"))) == ["a1", "a2"]
    nothing = await cli("topic", "consume", "zz", "-r", status=1)
    assert "regular expression 'zz' matches no topic" in nothing.stderr


async def test_consume_with_pattern_reads_matching_topics(cli: Cli) -> None:
    await cli("topic", "create", "a1", "a2", "b1")
    for name in ("a1", "a2", "b1"):
        await cli("topic", "produce", name, name)
    assert sorted(map(str, await values_in(cli, "a*"))) == ["a1", "a2"]
    await cli("topic", "consume", "*", "-g", "readers", "-o", ":end", "-f", "")
    topics = (await cli("group", "describe", "readers", "-t")).stdout.split()
    assert {"a1", "a2", "b1"} <= set(topics)
    assert "__consumer_offsets" not in topics


async def test_consume_filter_counts_only_printed_records(cli: Cli) -> None:
    """The group also commits the offsets of the records that the filter skips."""
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
    assert "invalid regular expression" in bad.stderr


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("value.n > 7", ["k8", "k9"]),
        ('key == "k3" or offset < 1', ["k0", "k3"]),
        ('topic == "t" and partition == 0 and value ~ "7"', ["k7"]),
        ("headers.odd and value.n < 4", ["k1", "k3"]),
    ],
)
async def test_consume_where_prints_matching_records(
    expression: str, expected: list[str], cli: Cli
) -> None:
    await cli("topic", "create", "t")
    for n in range(10):
        header = ("-H", "odd:1") if n % 2 else ()
        await cli("topic", "produce", "t", "-k", f"k{n}", f'{{"n": {n}}}', *header)
    read = await cli("topic", "consume", "t", "-o", ":end", "--where", expression, "-f", "%k\\n")
    assert read.stdout.split() == expected


async def test_consume_where_reports_position_of_error_and_large_records(cli: Cli) -> None:
    await cli("topic", "create", "t")
    bad = await cli("topic", "consume", "t", "--where", "value.n > ", status=2)
    text = " ".join(bad.stderr.split())
    assert "Invalid value for --where" in text
    assert "at character 10; for example --where 'value.amount > 100" in text
    value = f'{{"n": 1, "text": "{"x" * 300_000}"}}'
    await cli("topic", "produce", "t", stdin=value)
    read = await cli("topic", "consume", "t", "-o", ":end", "--where", "value.n == 1")
    assert read.stderr.splitlines() == [
        "--where did not search 1 record completely: too large",
        "0 of 1 records match",
    ]


@pytest.mark.parametrize(
    ("flags", "example"),
    [
        (("--filter-field", "order"), "for example --filter-field 'user.country=^DE$'"),
        (("--filter-key", "("), "for example --filter-key '^customer-1$'"),
        (("--filter-header", "=x"), "for example --filter-header 'source=^web$'"),
    ],
)
async def test_invalid_filter_is_rejected_with_option_and_example(
    flags: tuple[str, str], example: str, cli: Cli
) -> None:
    bad = await cli("topic", "consume", "t", *flags, status=2)
    text = " ".join(bad.stderr.split())
    assert f"Invalid value for {flags[0]}: " in text
    assert example in text


async def test_consume_of_range_without_matching_records_says_so(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "a", "b", "c")
    for flags, text in (
        (("-o", ":end", "--filter-key", "x"), "0 of 3 records match\n"),
        (("-o", "2:2"), "the range has no records; `kbroker topic describe` shows the offsets\n"),
        (("-o", ":end"), ""),
    ):
        read = await cli("topic", "consume", "t", *flags)
        assert read.stderr == text


async def test_consume_says_that_it_waits_on_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "early")
    monkeypatch.setattr("kbroker.cli.consume.is_watched", lambda: True)
    read = await cli("topic", "consume", "t", "--timeout", "300ms", status=4)
    assert "waiting for new records: partition 0 of t from offset 1; --from-beg" in read.stderr
    read = await cli("topic", "consume", "t", "-o", "start", "-n", "1")
    assert "waiting" not in read.stderr
    read = await cli("topic", "consume", "t", "-o", ":end")
    assert "waiting" not in read.stderr
    member = ("topic", "consume", "t", "-g", "g", "--from-beginning")
    await cli(*member, "-n", "1")
    read = await cli(*member, "--timeout", "3s", status=4)
    assert "group 'g' has committed offsets in 1 partition" in read.stderr
    assert "waiting for new records: partition 0 of t from offset 1; Ctrl+C" in read.stderr


@pytest.mark.parametrize(
    ("value", "flags", "is_hinted"),
    [
        (b"\0\0\0\0\7rest\xff", [], True),
        (b"\0\0\0\0\7rest\xff", ["-s", "none"], False),
        (b"\0\0\0\0\0\0\0\7", [], False),
        (b"plain text", [], False),
    ],
)
async def test_consume_on_terminal_hints_at_registry(
    value: bytes, flags: list[str], is_hinted: bool, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t")
    line = json.dumps({"value_base64": base64.b64encode(value).decode()})
    await cli("topic", "produce", "t", "--json", stdin=f"{line}\n{line}\n")
    read = await cli("topic", "consume", "t", "-o", ":end", *flags)
    assert read.stderr == ""
    monkeypatch.setattr("kbroker.cli.consume.is_watched", lambda: True)
    read = await cli("topic", "consume", "t", "-o", ":end", *flags)
    assert read.stderr.count("records of t start with a schema ID; --registry URL") == is_hinted


def test_waiting_text_for_many_partitions_is_short() -> None:
    text = waiting_text({(f"t{index}", 0): index for index in range(9)})
    assert text.startswith("waiting for new records: 9 partitions of t0, t1, t2 and others from")


@pytest.mark.parametrize("form", ["json", "wide"])
async def test_consume_offset_option_with_output_format_names_option(cli: Cli, form: str) -> None:
    output = await cli("topic", "consume", "t", "-o", form, status=2)
    assert "the output format is -f json or -f TEMPLATE" in " ".join(output.stderr.split())
