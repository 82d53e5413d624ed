"""The expected statistics of seven flights, computed by hand."""

from __future__ import annotations

import json

import pytest

from kbroker.demo import truth
from kbroker.demo.data import Files

NOTHING = {"flights": 0, "departed": 0, "delayed": 0, "delay_sum": 0, "delay_max": None}


def figures(flights: int, departed: int, delayed: int, total: int, worst: int | None) -> object:
    return {
        "flights": flights,
        "departed": departed,
        "delayed": delayed,
        "delay_sum": total,
        "delay_max": worst,
    }


def test_statistics_of_every_group_and_weather_are_correct(files: Files) -> None:
    groups = truth.compute(*files).groups
    ua = ("2013-01-01", "UA", "EWR")
    assert groups == {
        ua: {
            "all": figures(4, 3, 1, 13, 15),
            "rain": figures(1, 1, 1, 15, 15),
            "dry": figures(3, 2, 0, -2, 2),
            "no_weather": NOTHING,
        },
        ("2013-01-01", "AA", "JFK"): {
            "all": figures(1, 1, 0, 2, 2),
            "rain": figures(1, 1, 0, 2, 2),
            "dry": NOTHING,
            "no_weather": NOTHING,
        },
        ("2013-01-01", "AA", "LGA"): {
            "all": figures(1, 1, 1, 60, 60),
            "rain": NOTHING,
            "dry": NOTHING,
            "no_weather": figures(1, 1, 1, 60, 60),
        },
        # Local time is still the first of January; the day is the UTC one.
        ("2013-01-02", "B6", "JFK"): {
            "all": figures(1, 1, 1, 25, 25),
            "rain": NOTHING,
            "dry": figures(1, 1, 1, 25, 25),
            "no_weather": NOTHING,
        },
    }


def test_statistics_by_local_hour_and_weather_are_correct(files: Files) -> None:
    assert truth.compute(*files).hours == {
        (5, "dry"): figures(3, 2, 0, -2, 2),
        (5, "rain"): figures(2, 2, 1, 17, 15),
        (6, "no_weather"): figures(1, 1, 1, 60, 60),
        (22, "dry"): figures(1, 1, 1, 25, 25),
    }


def test_limit_selects_earliest_departures(files: Files) -> None:
    identities = truth.compute(*files, limit=5).departures.keys()
    hours = [hour for hour, _, _ in identities]
    assert hours == ["2013-01-01T10:00:00Z"] * 4 + ["2013-01-01T11:00:00Z"]
    assert ("2013-01-02T03:00:00Z", "B6", 22) not in identities


def test_only_cancelled_flights_have_no_worst_delay() -> None:
    tally = truth.Tally()
    tally.add(None)
    assert tally.figures() == figures(1, 0, 0, 0, None)


def test_early_departures_count_negative() -> None:
    tally = truth.Tally()
    for delay in (-5, -3):
        tally.add(delay)
    assert tally.figures() == figures(2, 2, 0, -8, -3)


def test_each_row_has_one_digest(files: Files) -> None:
    expected = truth.compute(*files)
    assert len(expected.departures) == 7
    assert len(expected.weather) == 5


@pytest.mark.parametrize(
    "change",
    [
        {"key": "AA"},
        {"timestamp_ms": 1},
        {"dep_delay": -1},
        {"dep_delay": None},
        {"flight": "1"},
        {"carrier": "AA"},
    ],
    ids=json.dumps,
)
def test_digest_depends_on_every_part_of_record(change: dict[str, object]) -> None:
    record: dict[str, object] = {
        "key": "UA",
        "timestamp_ms": 0,
        "carrier": "UA",
        "flight": 1,
        "dep_delay": -2,
    }
    assert _digest(record) != _digest(record | change)
    assert _digest(record) == _digest(dict(record))


def _digest(record: dict[str, object]) -> bytes:
    values = {name: value for name, value in record.items() if name not in ("key", "timestamp_ms")}
    return truth.digest(str(record["key"]), int(str(record["timestamp_ms"])), values)
