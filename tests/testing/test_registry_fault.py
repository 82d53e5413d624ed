"""Faults of the schema registry."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.testing import BrokerThread, LocalBroker, UnfiredFault, WaitTimeout
from kbroker.testing.fault_arguments import parse_call_rule
from kbroker.testing.registry_calls import Call, CallRule, CallTarget, parse_call
from kbroker.testing.schedule import Effect

SECONDS = 30
CONNECTION_ERRORS = (http.client.RemoteDisconnected, ConnectionResetError)


@pytest.fixture
def broker(thread: BrokerThread) -> Iterator[LocalBroker]:
    with LocalBroker(schema_registry=True, thread=thread) as broker:
        yield broker


def call_registry(broker: LocalBroker, path: str, body: Any = None) -> Any:
    """Return the decoded response, or HTTP status and error code of an error."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{broker.schema_registry_url}{path}"
    try:
        with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error_code"]


def register(broker: LocalBroker, subject: str = "s") -> Any:
    return call_registry(broker, f"/subjects/{subject}/versions", {"schema": '"string"'})


@pytest.mark.slow
@pytest.mark.parametrize(("error", "status"), [(503, 503), (50001, 500), (409, 409), (42201, 422)])
def test_registry_error_has_its_number_and_status(
    broker: LocalBroker, error: int, status: int
) -> None:
    fault = broker.registry_fault("POST", error=error).times(2)
    assert [register(broker), register(broker)] == [(status, error)] * 2
    assert fault.hits == 2
    assert register(broker)["id"] == 1


def test_registry_calls_about_other_subjects_are_served(broker: LocalBroker) -> None:
    path = broker.registry_fault(path="/schemas/ids/*", error=40403).always()
    subject = broker.registry_fault(["POST", "PUT"], subject="orders value", error=503)
    assert register(broker, "s")["id"] == 1
    assert register(broker, "orders%20value") == (503, 503)
    assert call_registry(broker, "/schemas/ids/1") == (404, 40403)
    assert call_registry(broker, "/subjects") == ["s"]
    assert (path.hits, subject.hits) == (1, 1)


def test_registry_fault_after_call_keeps_its_change(broker: LocalBroker) -> None:
    broker.registry_fault("POST", at="after", error=50001)
    assert register(broker) == (500, 50001)
    assert call_registry(broker, "/subjects/s/versions") == [1]
    broker.registry_fault("POST", at="after").disconnect()
    with pytest.raises(CONNECTION_ERRORS):
        register(broker, "t")
    assert call_registry(broker, "/subjects") == ["s", "t"]
    broker.registry_fault("GET", at="after").delay(1)
    assert call_registry(broker, "/subjects") == ["s", "t"]


def test_registry_disconnect_sends_no_response(broker: LocalBroker) -> None:
    broker.registry_fault("POST").disconnect()
    with pytest.raises(CONNECTION_ERRORS):
        register(broker)
    assert call_registry(broker, "/subjects") == []


@contextmanager
def open_call(broker: LocalBroker) -> Iterator[socket.socket]:
    """Open a connection, and request the subjects."""
    address = Endpoint.parse(broker.schema_registry_url.removeprefix("http://"))
    with socket.create_connection(address, timeout=SECONDS) as client:
        client.sendall(b"GET /subjects HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield client


@pytest.mark.parametrize("ms", [None, 3_600_000])
def test_registry_blackhole_does_not_block_other_calls(
    broker: LocalBroker, ms: float | None
) -> None:
    fault = broker.registry_fault("GET")
    _ = fault.blackhole() if ms is None else fault.delay(ms)
    with open_call(broker) as client:
        fault.wait()
        assert register(broker)["id"] == 1
        assert call_registry(broker, "/subjects") == ["s"]
        client.settimeout(0.01)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_registry_delay_delays_call(broker: LocalBroker) -> None:
    fault = broker.registry_fault("POST").delay(20)
    begun = time.monotonic()
    assert register(broker)["id"] == 1
    assert time.monotonic() - begun >= 0.02
    assert fault.hits == 1


def test_unfired_registry_fault_names_similar_calls(broker: LocalBroker) -> None:
    fault = broker.registry_fault("POST", subject="other", error=503)
    register(broker)
    with pytest.raises(WaitTimeout, match="saw 1 x POST /subjects/s/versions"):
        fault.wait(timeout=0.01)
    assert "armed: error 503 for POST" in broker.report()
    assert "  POST /subjects/s/versions" in broker.report().splitlines()
    with pytest.raises(UnfiredFault, match="error 503 for POST, subject 'other' never fired: saw"):
        broker.check_faults()
    broker.disarm_faults()


def test_registry_faults_survive_restart_and_can_be_disarmed(broker: LocalBroker) -> None:
    fault = broker.registry_fault(error=503).always()
    broker.restart()
    assert call_registry(broker, "/subjects") == (503, 503)
    fault.disarm()
    assert call_registry(broker, "/subjects") == []


def test_registry_fault_without_effect_only_counts(
    broker: LocalBroker,
) -> None:
    seen = broker.registry_fault("POST").always()
    broker.registry_fault("POST", error=503).on_call(2)
    broker.registry_fault(error=500).with_probability(0)
    assert register(broker)["id"] == 1
    assert register(broker) == (503, 503)
    assert seen.hits == 2


def test_kafka_and_registry_faults_do_not_interfere(broker: LocalBroker) -> None:
    kafka = broker.fault(error="COORDINATOR_NOT_AVAILABLE").always().optional()
    schemas = broker.registry_fault().always()
    broker.produce("orders", "x")
    assert schemas.hits == 0
    assert register(broker)["id"] == 1
    assert (kafka.hits, schemas.hits) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "PATCH"}, "invalid method .PATCH. .valid: GET, HEAD, POST, PUT, DELETE"),
        ({"path": "subjects"}, "a path begins with /"),
        ({"error": 200}, "pass an HTTP status from 400 to 599"),
        ({"error": 4040}, "pass an HTTP status from 400 to 599"),
        ({"error": True}, "error must be int"),
        ({"at": "while"}, r"\(valid: .before., .after.\)"),
        ({"topic": "orders"}, "a fault has no 'topic'"),
        (
            {"effect": "throttle", "ms": 1},
            r"no effect .throttle. \(valid: pass, disconnect, delay, blackhole",
        ),
        ({"effect": "delay"}, "effect delay: ms is missing"),
        ({"error": 500, "effect": "delay", "ms": 1}, "either an error or another effect"),
        ({"times": 0}, "times must be at least 1"),
    ],
)
def test_invalid_registry_fault_is_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_call_rule(arguments)


def test_fault_command_creates_same_rule() -> None:
    arguments = {"method": ["get", "POST"], "path": "/subjects/*", "at": "after", "times": 2}
    rule = parse_call_rule({**arguments, "effect": "delay", "ms": 5, "subject": None})
    assert rule.target == CallTarget(frozenset({"GET", "POST"}), "/subjects/*")
    assert (rule.effect, rule.milliseconds, rule.after, rule.count) == (Effect.DELAY, 5, True, 2)
    assert str(rule) == "delay for GET or POST, path '/subjects/*'"
    assert parse_call_rule({"error": 503}).effect is Effect.ERROR
    assert parse_call_rule({"probability": 0.5}).may_stay_unfired


@pytest.mark.parametrize(
    ("path", "query", "subject"),
    [
        ("/subjects/a%2Fb/versions/1", "", "a/b"),
        ("/config/s", "", "s"),
        ("/mode/s", "", "s"),
        ("/compatibility/subjects/s/versions/latest", "", "s"),
        ("/schemas/ids/1", "subject=a%2Fb", "a/b"),
        ("/schemas/ids/1", "", None),
        ("/subjects", "", None),
    ],
)
def test_subject_of_call_is_parsed(path: str, query: str, subject: str | None) -> None:
    scope = {"method": "GET", "raw_path": path.encode(), "query_string": query.encode()}
    assert parse_call(scope).subject == subject


@pytest.mark.parametrize(
    ("pattern", "hit"),
    [
        ("/subjects/*", True),
        ("/subjects/s", False),
        ("*/versions", True),
        ("/subjects/s/*/x", False),
    ],
)
def test_star_in_path_matches_anything(pattern: str, hit: bool) -> None:
    rule = CallRule(CallTarget(path=pattern))
    assert rule.try_hit(Call("GET", "/subjects/s/versions", "s")) is hit


def test_registry_fault_without_registry_raises_error(thread: BrokerThread) -> None:
    with (
        LocalBroker(thread=thread) as broker,
        pytest.raises(ValueError, match="schema_registry=True"),
    ):
        broker.registry_fault(error=503)
