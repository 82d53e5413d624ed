"""Offset specs and ranges of `kbroker topic consume`."""

from __future__ import annotations

from ..commands import Cli
from .records import values_in


async def test_consume_accepts_all_offset_ranges(cli: Cli) -> None:
    await cli("topic", "create", "t")
    for number in range(5):
        await cli(
            "topic", "produce", "t", str(number), "-t", f"{1_700_000_000_000 + number * 1000}"
        )
    for offset_range, wanted in {
        ":end": "01234",
        ":3": "012",
        "1:3": "12",
        "+1:end": "1234",
        "-2:end": "34",
        "@1700000002000:end": "234",
        "@1700000001000:2s": "12",
        "@2023-11-14T22:13:21Z:2023-11-14T22:13:23Z": "12",
        "@:1700000001": "0",
        "2:2": "",
    }.items():
        read = await cli("topic", "consume", "t", "-o", offset_range, "-f", "%v")
        assert read.stdout == wanted, offset_range
    assert await values_in(cli, "t", "-n", "2") == ["0", "1"]
    first = await cli("topic", "consume", "t", "--from-beginning", "-n", "1", "-f", "%v")
    assert first.stdout == "0"
    await cli("topic", "consume", "t", "-o", "nowhere", status=2)
    for reversed_range in ("3:2", "@1700000002000:@1700000001000", "+3:+2", "-1:-2"):
        failed = await cli("topic", "consume", "t", "-o", reversed_range, status=2)
        assert "is reversed" in failed.stderr, reversed_range
    for offset_range in ("1700000000000", ":1700000000000"):
        failed = await cli("topic", "consume", "t", "-o", offset_range, status=1)
        assert "write @1700000000000 for the first record" in failed.stderr
    replay = ("replay", "t", "--to-topic", "u", "--from", "1700000000000", "--dry-run")
    assert "write @1700000000000" in (await cli(*replay, status=1)).stderr
    trim = await cli("topic", "trim", "t", "--before", "1700000000000", "--dry-run", status=1)
    assert "write @1700000000000" in trim.stderr
    output = await cli("topic", "consume", "t", "-o", "77", status=1)
    assert "does not have offset 77" in output.stderr
