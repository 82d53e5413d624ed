"""Records with all 64-bit timestamps, in every command that reads or writes timestamps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import main
from kbroker.cli.offsets import BadOffsetSpec, parse_time
from kbroker.client.ndjson import BadLine, parse_line
from kbroker.pipelines.replay.pace import Speed
from kbroker.protocol.records import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Record,
    encode_batch,
    read_records,
)
from kbroker.testing import LocalBroker
from kbroker.text.times import date_of, iso_time, utc_text

pytestmark = pytest.mark.usefixtures("no_settings_of_this_machine")


YEAR_1, YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
NOW = 1_700_000_000_000
TIMES = [
    *(TIMESTAMP_MIN, TIMESTAMP_MIN + 1, YEAR_1 - 1, YEAR_1, -(2**31), -7, -6, -2, -1),
    *(0, 1, NOW, YEAR_10000 - 1, YEAR_10000, TIMESTAMP_MAX - 1, TIMESTAMP_MAX),
]
EARLIER_DATES = {YEAR_1: "0001-01-01T00:00:00.000Z", -7: "1969-12-31T23:59:59.993Z"}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker whose topics accept all timestamps."""
    keep = {"message.timestamp.after.max.ms": str(TIMESTAMP_MAX), "retention.ms": "-1"}
    with LocalBroker() as broker:
        for name in ("t", "copy", "again", "single"):
            broker.create_topic(name, configs=keep)
        lines = "".join(f'{{"value": "{each}", "timestamp": {each}}}\n' for each in TIMES)
        run(broker, "topic", "produce", "t", "--json", stdin=lines)
        yield broker


def run(broker: LocalBroker, *arguments: str, stdin: str | None = None, status: int = 0) -> Result:
    environment = {"KBROKER_BOOTSTRAP": broker.bootstrap_servers}
    done = CliRunner(env=environment).invoke(main, arguments, input=stdin, catch_exceptions=False)
    assert done.exit_code == status, (arguments, done.output)
    return done


def read(broker: LocalBroker, topic: str, form: str = "%d\\n") -> list[str]:
    return run(broker, "topic", "consume", topic, "-o", ":end", "-f", form).stdout.splitlines()


def test_consumed_timestamps_are_produced_unchanged(broker: LocalBroker) -> None:
    lines = run(broker, "topic", "consume", "t", "-o", ":end", "--json").stdout
    assert [json.loads(line)["timestamp"] for line in lines.splitlines()] == TIMES
    run(broker, "topic", "produce", "copy", "--json", stdin=lines)
    assert read(broker, "copy") == list(map(str, TIMES))
    assert "clean" in run(broker, "audit", "t", "--against", "copy").stdout


@pytest.mark.slow
@pytest.mark.parametrize("each", TIMES)
def test_single_record_keeps_its_timestamp(broker: LocalBroker, each: int) -> None:
    """The record has its own batch, so no other record determines the base timestamp."""
    line = f'{{"value": "x", "timestamp": {each}}}'
    run(broker, "topic", "produce", "single", "--json", stdin=line)
    assert read(broker, "single")[-1] == str(each)
    produced = broker.produce("single", "y", timestamp=each)
    assert produced.timestamp == each
    assert broker.records("single")[-1].timestamp in TIMES


def test_timestamps_without_date_are_printed_as_numbers(broker: LocalBroker) -> None:
    """A record without a timestamp is printed as a number too."""
    printed = dict(zip(TIMES, read(broker, "t", "%d{strftime[%m-%dT%H]}\\n"), strict=True))
    assert printed[YEAR_1] == "01-01T00"
    assert printed[YEAR_10000 - 1] == "12-31T23"
    assert printed[-2] == "12-31T23"
    assert printed[0] == "01-01T00"
    for each in (TIMESTAMP_MIN, YEAR_1 - 1, -1, YEAR_10000, TIMESTAMP_MAX):
        assert printed[each] == str(each)
        assert date_of(each) is None
        assert iso_time(each) == str(each)
    for each, text in EARLIER_DATES.items():
        assert iso_time(each) == text
    assert iso_time(None) is None


@pytest.mark.parametrize("form", ["text", "json"])
def test_audit_reports_extreme_timestamps(broker: LocalBroker, form: str) -> None:
    output = run(broker, "audit", "t", "-o", form).stdout
    assert str(TIMESTAMP_MIN) in output
    assert str(TIMESTAMP_MAX) in output
    if form == "json":
        (partition,) = json.loads(output)["partitions"]
        assert partition["times_back"] == 0, "one without a time does not go back"


def test_replay_keeps_extreme_timestamps(broker: LocalBroker) -> None:
    for flags in (["--dry-run"], [], ["--dry-run", "--speed", "2x"]):
        output = run(broker, "replay", "t", "--to-topic", "again", *flags).output
        assert str(TIMESTAMP_MIN) in output
    assert read(broker, "again") == list(map(str, TIMES))
    run(broker, "topic", "trim", "--yes", "again", "--before", "end")
    lines = run(broker, "topic", "consume", "t", "-o", ":end", "--json").stdout
    run(broker, "replay", "--ndjson", "-", "--to-topic", "again", stdin=lines)
    assert read(broker, "again") == list(map(str, TIMES))


def test_replay_shifts_timestamps_within_64_bits(broker: LocalBroker) -> None:
    run(broker, "topic", "trim", "--yes", "again", "--before", "end")
    middle = ("--from", str(TIMES.index(-7)), "--to", str(TIMES.index(NOW) + 1))
    run(broker, "replay", "t", "--to-topic", "again", *middle, "--timestamps", "+1s")
    assert read(broker, "again") == ["993", "994", "998", "-1", "1000", "1001", f"{NOW + 1000}"]
    run(broker, "topic", "trim", "--yes", "again", "--before", "end")
    run(broker, "replay", "t", "--to-topic", "again", *middle, "--timestamps", "-1ms")
    wanted = ["-8", "-7", "-3", "-1", "0", "0", f"{NOW - 1}"]
    assert read(broker, "again") == wanted, "one that had a time keeps one"
    for shift in ("+1s", "now"):
        flags = ("--to-topic", "again", "--timestamps", shift)
        output = run(broker, "replay", "t", *flags, status=1)
        assert re.search(r"timestamp -?\d+ shifted by \d+ ms exceeds 64 bits", output.stderr)
    last = ("--from", str(TIMES.index(-1)), "--to", str(TIMES.index(-1) + 2))
    run(broker, "topic", "trim", "--yes", "again", "--before", "end")
    run(broker, "replay", "t", "--to-topic", "again", *last, "--timestamps", "now")
    without, first = read(broker, "again")
    assert (without, int(first) > NOW) == ("-1", True)


def test_pace_handles_timestamps_before_1970() -> None:
    pace = Speed(1)
    records = [Record(None, None, at) for at in (-(10**12), -1, 1000 - 10**12, 2000 - 10**12)]
    assert pace.due(records, 50.0) == 2
    assert pace.next_at(records[2]) == 51.0
    assert pace.due(records[2:], 51.0) == 1
    assert pace.next_at(records[1]) == 51.0, "one without a time is due with the one before"


def test_time_before_1970_selects_log_start(broker: LocalBroker) -> None:
    """Brokers search no time before 1970, and -1 and -2 are special. The client uses the log start."""

    def consume_from(time: str) -> list[str]:
        arguments = ("topic", "consume", "t", "-o", f"@{time}:end", "-f", "%v\\n")
        return run(broker, *arguments).stdout.splitlines()

    for time in ("0001-01-01", "1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "-99999d"):
        assert consume_from(time) == list(map(str, TIMES))
        moved = run(
            broker, "group", "seek", "--yes", "g", "--to", f"@{time}", "-t", "t", "-o", "json"
        )
        assert json.loads(moved.stdout)[0]["new_offset"] == 0
        trimmed = run(broker, "topic", "trim", "--yes", "t", "--before", f"@{time}", "-o", "json")
        assert json.loads(trimmed.stdout)[0]["records"] == 0
    assert consume_from("1970-01-01T00:00:00Z") == list(map(str, TIMES[TIMES.index(0) :]))
    assert consume_from("9999-12-31T23:59:59.999Z") == list(
        map(str, TIMES[TIMES.index(YEAR_10000 - 1) :])
    )


@pytest.mark.parametrize("time", ["99999999999999999d", "-99999999999999999d"])
def test_times_beyond_64_bits_are_rejected(broker: LocalBroker, time: str) -> None:
    with pytest.raises(BadOffsetSpec, match="range of 64-bit timestamps"):
        parse_time(time, NOW)
    output = run(broker, "topic", "produce", "t", "x", "-t", time, status=2)
    assert "range of 64-bit timestamps" in output.stderr
    for each in (TIMESTAMP_MIN - 1, TIMESTAMP_MAX + 1):
        with pytest.raises(BadLine, match="timestamp must be an integer"):
            parse_line(f'{{"timestamp": {each}}}', 0)
        with pytest.raises(ValueError, match="timestamp must be from"):
            broker.produce("t", "x", timestamp=each)


def test_time_equal_to_no_timestamp_is_rejected(broker: LocalBroker) -> None:
    time = "1969-12-31T23:59:59.999Z"
    output = run(broker, "topic", "produce", "t", "x", "-t", time, status=2)
    assert "means no timestamp" in output.stderr


@pytest.mark.parametrize("base", TIMES)
def test_batch_keeps_any_pair_of_timestamps(base: int) -> None:
    """Differences of 65 bits wrap around, as in Java."""
    records = [Record(None, b"v", each) for each in (base, *TIMES)]
    found = read_records(encode_batch(records))
    assert [record.timestamp for record in found] == [base, *TIMES]


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (NOW, "2023-11-14 22:13:20 UTC"),
        (NOW + 7, "2023-11-14 22:13:20.007 UTC"),
        (TIMESTAMP_MAX, f"{TIMESTAMP_MAX} ms"),
    ],
)
def test_utc_text_names_zone_or_unit(ms: int, expected: str) -> None:
    assert utc_text(ms) == expected
