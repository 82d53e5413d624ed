"""Brokers of the test kit with a schema registry."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from kbroker.testing import LocalBroker

from ..web.secured import basic_auth

SECONDS = 30


def test_schema_registry_keeps_schemas_over_restart() -> None:
    with LocalBroker(schema_registry=True) as broker:
        url, body = broker.schema_registry_url, b'{"schema": "\\"string\\""}'
        with urllib.request.urlopen(f"{url}/subjects/s/versions", body, timeout=SECONDS) as answer:
            assert json.load(answer)["id"] == 1
        broker.stop()
        broker.start()
        assert broker.schema_registry_url == url
        with urllib.request.urlopen(f"{url}/subjects", timeout=SECONDS) as answer:
            assert json.load(answer) == ["s"]


def test_broker_has_no_schema_registry_by_default() -> None:
    with LocalBroker() as broker, pytest.raises(ValueError, match="schema_registry=True"):
        _ = broker.schema_registry_url


def test_registry_requires_authentication_if_broker_does() -> None:
    with LocalBroker(schema_registry=True, users={"alice": "secret"}) as broker:
        url = f"{broker.schema_registry_url}/subjects"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(url, timeout=SECONDS)
        refused.value.close()
        request = urllib.request.Request(url, headers=basic_auth("alice", "secret"))
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert json.load(answer) == []
