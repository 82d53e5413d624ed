"""Faults and clocks of a broker under test in the console."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.config import BrokerConfig
from kbroker.testing import LocalBroker
from kbroker.testing.console_broker import ConsoleBroker
from kbroker.web.service import HttpService

from .consoles import API, console

SECONDS = 60
HOUR_MS = 3_600_000


class Page:
    """A client of the console of a broker under test."""

    def __init__(self, broker: LocalBroker, url: str) -> None:
        self.broker = broker
        self._url = url + API
        self.token = self.get("/session")["token"]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=SECONDS) as response:
            return json.load(response)

    def post(self, path: str, **fields: object) -> int:
        """Return the status of the response."""
        headers = {"x-kbroker-token": self.token}
        body = json.dumps(fields).encode()
        request = urllib.request.Request(self._url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return int(response.status)
        except urllib.error.HTTPError as refused:
            with refused:
                content: dict[str, str] = json.load(refused)
            return refused.code if content["error"] else 0


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[LocalBroker, HttpService]]:
    options = {"http.port": "0", "connection.setup.timeout.ms": "3600000"}
    config = BrokerConfig.load(options=options)
    http = HttpService(config)
    with LocalBroker(config=config, service=http) as broker:
        http.under_test = ConsoleBroker(broker)
        yield broker, http


@pytest.fixture
def page(broker: tuple[LocalBroker, HttpService]) -> Iterator[Page]:
    under_test, http = broker
    yield Page(under_test, f"http://{http.endpoint_of(1)}")
    under_test.disarm_faults()


def test_armed_faults_are_listed_with_hits_and_disarmed(page: Page) -> None:
    assert page.get("/session")["under_test"] is True
    page.broker.fault("Produce", topic="a", error="NOT_LEADER_OR_FOLLOWER").optional()
    page.broker.fault("Fetch").delay(5).optional()
    first, second = page.get("/tests")["faults"]
    assert first["text"] == "NOT_LEADER_OR_FOLLOWER for Produce, topic 'a'"
    assert (first["hits"], second["text"]) == (0, "delay for Fetch")
    assert page.post("/tests/disarm", fault=first["number"]) == 200
    assert page.get("/tests")["faults"] == [second]
    assert page.post("/tests/disarm", fault=first["number"]) == 409
    page.broker.fault("Fetch").delay(5).optional()
    assert [each["number"] for each in page.get("/tests")["faults"]] == [
        second["number"],
        second["number"] + 1,
    ]
    assert page.post("/tests/disarm") == 200
    listed = page.get("/tests")
    assert (listed["faults"], listed["fault_count"]) == ([], 0)


def test_clocks_are_shown_and_advanced(page: Page) -> None:
    before = page.get("/tests")
    assert page.post("/tests/advance", seconds=3600) == 200
    assert page.post("/tests/advance", clock="coordinator", seconds=60) == 200
    after = page.get("/tests")
    assert after["log_added_ms"] == before["log_added_ms"] + HOUR_MS
    assert after["log_ms"] >= before["log_ms"] + HOUR_MS
    added_ms = after["coordinator_added_ms"] - before["coordinator_added_ms"]
    assert 59_000 <= added_ms <= 60_000, "what passes while it is moved counts"
    assert after["log_is_frozen"] is False
    page.broker.clock.freeze()
    assert page.get("/tests")["log_is_frozen"] is True
    page.broker.clock.resume()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tests/advance", {}),
        ("/tests/advance", {"seconds": 0}),
        ("/tests/advance", {"seconds": -1}),
        ("/tests/advance", {"seconds": 10**12}),
        ("/tests/advance", {"seconds": True}),
        ("/tests/advance", {"seconds": "1"}),
        ("/tests/advance", {"seconds": 1, "clock": "wall"}),
        ("/tests/disarm", {"fault": "all"}),
    ],
)
def test_malformed_test_command_changes_nothing(
    page: Page, path: str, fields: dict[str, Any]
) -> None:
    before = page.get("/tests")
    assert page.post(path, **fields) == 400
    after = page.get("/tests")
    assert after["log_added_ms"] == before["log_added_ms"]


def test_test_command_without_token_is_rejected(page: Page) -> None:
    page.token = "no token"
    assert page.post("/tests/advance", seconds=1) == 403
    assert page.post("/tests/disarm") == 403


async def test_broker_without_control_port_has_no_test_page() -> None:
    async with console() as client:
        assert (await client.get("/session"))["under_test"] is False
        assert (await client.ask("/tests")).status == 404
        assert (await client.post("/tests/disarm", {})).status == 404
