"""The checks find each kind of wrong record or statistic."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.demo import data, truth, verify
from kbroker.demo.data import Files
from kbroker.demo.readback import Record

Records = list[Record]


@pytest.fixture
def records(files: Files) -> Records:
    return [
        Record(0, offset, message.timestamp_ms, message.key, message.value)
        for offset, message in enumerate(data.departures(files))
    ]


@pytest.fixture
def expected(files: Files) -> truth.Truth:
    return truth.compute(*files)


def check(expected: truth.Truth, records: Records) -> verify.Check:
    return verify.check_records("it", expected.departures, truth.DEPARTURE_IDENTITY, records)


def with_value(record: Record, **changes: Any) -> Record:
    return record._replace(
        value=json.dumps({**json.loads(record.value or b""), **changes}).encode()
    )


def test_produced_records_match_expected_digests(
    files: Files, expected: truth.Truth, records: Records
) -> None:
    assert check(expected, records).passed
    weather = [Record(0, 0, m.timestamp_ms, m.key, m.value) for m in data.weather(files)]
    passed = verify.check_records("it", expected.weather, truth.WEATHER_IDENTITY, weather)
    assert passed.passed
    assert passed.finding == "5 records, each exactly once and unchanged"


def test_record_order_is_ignored(expected: truth.Truth, records: Records) -> None:
    assert check(expected, records[::-1]).passed


@pytest.mark.parametrize(
    ("damage", "difference"),
    [
        (lambda rs: rs[1:], "2013-01-01T10:00:00Z UA 1545 is missing"),
        (lambda rs: [*rs, rs[3]], "AA 1141 .* is a duplicate"),
        (lambda rs: [with_value(rs[0], dep_delay=3), *rs[1:]], "UA 1545 .* differs"),
        (lambda rs: [with_value(rs[0], year="2013"), *rs[1:]], "UA 1545 .* differs"),
        (lambda rs: [rs[0]._replace(timestamp_ms=0), *rs[1:]], "UA 1545 .* differs"),
        (lambda rs: [rs[0]._replace(key=b"AA"), *rs[1:]], "UA 1545 .* differs"),
        (lambda rs: [rs[0]._replace(key=None), *rs[1:]], "UA 1545 .* differs"),
        (lambda rs: [*rs, with_value(rs[0], flight=1)], "UA 1 .* is not in the data set"),
        (lambda rs: [*rs, rs[0]._replace(value=None)], "offset 0 is not a record of the data set"),
        (lambda rs: [*rs, rs[0]._replace(value=b"{")], "offset 0 is not a record of the data set"),
        (lambda rs: [*rs, rs[0]._replace(value=b"7")], "offset 0 is not a record of the data set"),
        (lambda rs: [*rs, rs[0]._replace(key=b"\xff")], "offset 0 is not a record of the data"),
    ],
)
def test_topic_with_wrong_records_fails(
    expected: truth.Truth,
    records: Records,
    damage: Callable[[Records], Records],
    difference: str,
) -> None:
    found = check(expected, damage(records))
    assert not found.passed
    assert len(found.differences) == 1
    assert re.search(difference, found.examples()[0])


def test_record_with_other_identity_causes_two_differences(
    expected: truth.Truth, records: Records
) -> None:
    found = check(expected, [records[1], *records[1:]])
    assert len(found.differences) == 2


def test_only_the_first_differences_are_shown(expected: truth.Truth) -> None:
    assert check(expected, []).examples()[-1] == "and 4 more"


def test_equal_statistics_pass(expected: truth.Truth) -> None:
    found = json.loads(json.dumps(list(expected.groups.values())))
    groups = dict(zip(expected.groups, found, strict=True))
    result = verify.check_figures("it", expected.groups, groups)
    assert result.passed
    assert result.finding == "80 results of 4 groups, all equal"


def test_wrong_statistic_is_named(expected: truth.Truth) -> None:
    groups = json.loads(json.dumps(list(expected.groups.values())))
    found = dict(zip(expected.groups, groups, strict=True))
    found["2013-01-01", "UA", "EWR"]["rain"]["delay_sum"] += 1
    result = verify.check_figures("it", expected.groups, found)
    assert result.differences == ["group 2013-01-01 UA EWR: rain delay_sum is 16, should be 15"]


def test_missing_unexpected_and_malformed_groups_are_named(expected: truth.Truth) -> None:
    found: dict[Any, Any] = dict(expected.groups)
    del found["2013-01-01", "UA", "EWR"]
    found["2014-01-01", "UA", "EWR"] = {}
    found["2013-01-01", "AA", "JFK"] = None
    found["2013-01-01", "AA", "LGA"] = {
        key: value for key, value in found["2013-01-01", "AA", "LGA"].items() if key != "dry"
    }
    differences = verify.check_figures("it", expected.groups, found).differences
    assert len(differences) == 4
    assert differences[0].startswith("group 2013-01-01 AA JFK: is None, should be {")
    assert differences[1:] == [
        "group 2013-01-01 AA LGA: dry is missing",
        "group 2013-01-01 UA EWR is missing",
        "group 2014-01-01 UA EWR should not exist",
    ]


def test_late_rows_fail() -> None:
    assert verify.check_late(0).passed
    assert verify.check_late(60).differences == ["Spark dropped 60 rows older than its watermark"]
