"""Tests of the records that the producer sends."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from datetime import UTC, datetime

import pytest

from kbroker.demo import StartError, data
from kbroker.demo.data import Files


def test_departures_are_sorted_by_scheduled_hour(files: Files) -> None:
    hours = [json.loads(message.value)["time_hour"] for message in data.departures(files)]
    assert len(hours) == 7
    assert hours == sorted(hours)
    assert hours[-1] == "2013-01-02T03:00:00Z"


def test_departures_of_an_hour_keep_file_order(files: Files) -> None:
    flights = [json.loads(message.value)["flight"] for message in data.departures(files, 4)]
    assert flights == [1545, 1696, 1714, 1141]


def test_departure_has_carrier_event_time_and_all_columns(files: Files) -> None:
    message = next(data.departures(files))
    assert message.key == b"UA"
    assert message.timestamp_ms == datetime(2013, 1, 1, 10, tzinfo=UTC).timestamp() * 1000
    values = json.loads(message.value)
    assert len(values) == 19
    assert (values["dep_delay"], values["tailnum"], values["hour"]) == (2, "N14228", 5)


def test_missing_values_become_null(files: Files) -> None:
    cancelled = json.loads(list(data.departures(files))[2].value)
    assert cancelled["dep_delay"] is None
    assert cancelled["tailnum"] is None


def test_weather_is_keyed_by_airport_and_keeps_fractions(files: Files) -> None:
    messages = list(data.weather(files))
    assert [message.key for message in messages] == [b"EWR", b"EWR", b"JFK", b"JFK", b"LGA"]
    values = json.loads(messages[1].value)
    assert (values["precip"], values["pressure"], values["wind_gust"]) == (0.01, 1000.0, None)


def test_unexpected_columns_are_rejected(files: Files) -> None:
    with zipfile.ZipFile(files.flights, "w") as archive:
        archive.writestr("flights.csv", "time_hour,carrier\n2013-01-01T10:00:00Z,UA\n")
    with pytest.raises(StartError, match="does not have the columns"):
        list(data.departures(files))


def test_missing_package_error_names_pip_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"pip install '\.\[demo\]'"):
        data.locate()
