"""Brokers of the test kit that serve schemas too."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from kbroker.testing import LocalBroker

from ..web.secured import shown

SECONDS = 30


def test_a_broker_of_a_test_serves_schemas_and_keeps_them_when_it_is_restarted() -> None:
    with LocalBroker(schema_registry=True) as broker:
        url, body = broker.schema_registry_url, b'{"schema": "\\"string\\""}'
        with urllib.request.urlopen(f"{url}/subjects/s/versions", body, timeout=SECONDS) as answer:
            assert json.load(answer)["id"] == 1
        broker.stop()
        broker.start()
        assert broker.schema_registry_url == url
        with urllib.request.urlopen(f"{url}/subjects", timeout=SECONDS) as answer:
            assert json.load(answer) == ["s"]


def test_without_being_asked_for_there_is_none() -> None:
    with LocalBroker() as broker, pytest.raises(ValueError, match="schema_registry=True"):
        _ = broker.schema_registry_url


def test_where_users_log_in_they_do_at_the_registry_too() -> None:
    with LocalBroker(schema_registry=True, users={"alice": "secret"}) as broker:
        url = f"{broker.schema_registry_url}/subjects"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=SECONDS)
        request = urllib.request.Request(url, headers=shown("alice", "secret"))
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert json.load(answer) == []
