"""Calls of a schema registry that fail or are slow because a test says so."""

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
from kbroker.testing.calls import Call, CallRule, CallTarget, parse_call
from kbroker.testing.fault_words import parse_call_rule
from kbroker.testing.schedule import Effect

SECONDS = 30
CUT_OFF = (http.client.RemoteDisconnected, ConnectionResetError)


@pytest.fixture
def broker(thread: BrokerThread) -> Iterator[LocalBroker]:
    with LocalBroker(schema_registry=True, thread=thread) as broker:
        yield broker


def ask(broker: LocalBroker, path: str, body: Any = None) -> Any:
    """What it answers, or the status and the body with which it refuses."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{broker.schema_registry_url}{path}"
    try:
        with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error_code"]


def register(broker: LocalBroker, subject: str = "s") -> Any:
    return ask(broker, f"/subjects/{subject}/versions", {"schema": '"string"'})


@pytest.mark.parametrize(("error", "status"), [(503, 503), (50001, 500), (409, 409), (42201, 422)])
def test_an_error_comes_with_its_number_and_its_status(
    broker: LocalBroker, error: int, status: int
) -> None:
    fault = broker.registry_fault("POST", error=error).times(2)
    assert [register(broker), register(broker)] == [(status, error)] * 2
    assert fault.hits == 2
    assert register(broker)["id"] == 1


def test_calls_about_others_are_served_as_they_should_be(broker: LocalBroker) -> None:
    path = broker.registry_fault(path="/schemas/ids/*", error=40403).always()
    subject = broker.registry_fault(["POST", "PUT"], subject="orders value", error=503)
    assert register(broker, "s")["id"] == 1
    assert register(broker, "orders%20value") == (503, 503)
    assert ask(broker, "/schemas/ids/1") == (404, 40403)
    assert ask(broker, "/subjects") == ["s"]
    assert (path.hits, subject.hits) == (1, 1)


def test_work_can_be_done_before_the_lie(broker: LocalBroker) -> None:
    broker.registry_fault("POST", at="after", error=50001)
    assert register(broker) == (500, 50001)
    assert ask(broker, "/subjects/s/versions") == [1]
    broker.registry_fault("POST", at="after").disconnect()
    with pytest.raises(CUT_OFF):
        register(broker, "t")
    assert ask(broker, "/subjects") == ["s", "t"]
    broker.registry_fault("GET", at="after").delay(1)
    assert ask(broker, "/subjects") == ["s", "t"]


def test_a_connection_is_closed_without_an_answer(broker: LocalBroker) -> None:
    broker.registry_fault("POST").disconnect()
    with pytest.raises(CUT_OFF):
        register(broker)
    assert ask(broker, "/subjects") == []


@contextmanager
def waiting(broker: LocalBroker) -> Iterator[socket.socket]:
    """The connection of a client that has asked for subjects."""
    address = Endpoint.parse(broker.schema_registry_url.removeprefix("http://"))
    with socket.create_connection(address, timeout=SECONDS) as client:
        client.sendall(b"GET /subjects HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield client


@pytest.mark.parametrize("ms", [None, 3_600_000])
def test_who_is_not_answered_for_long_holds_up_nobody_else(
    broker: LocalBroker, ms: float | None
) -> None:
    fault = broker.registry_fault("GET")
    _ = fault.blackhole() if ms is None else fault.delay(ms)
    with waiting(broker) as client:
        fault.wait()
        assert register(broker)["id"] == 1
        assert ask(broker, "/subjects") == ["s"]
        client.settimeout(0.01)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_call_takes_as_long_as_it_is_told(broker: LocalBroker) -> None:
    fault = broker.registry_fault("POST").delay(20)
    begun = time.monotonic()
    assert register(broker)["id"] == 1
    assert time.monotonic() - begun >= 0.02
    assert fault.hits == 1


def test_a_fault_that_hits_nothing_says_what_came_close(broker: LocalBroker) -> None:
    fault = broker.registry_fault("POST", subject="other", error=503)
    register(broker)
    with pytest.raises(WaitTimeout, match="saw 1 x POST /subjects/s/versions"):
        fault.wait(timeout=0.01)
    assert "armed: error 503 for POST" in broker.report()
    assert "  POST /subjects/s/versions" in broker.report().splitlines()
    with pytest.raises(UnfiredFault, match="error 503 for POST, subject 'other' never fired: saw"):
        broker.check_faults()
    broker.disarm_faults()


def test_faults_outlast_a_restart_and_can_be_disarmed(broker: LocalBroker) -> None:
    fault = broker.registry_fault(error=503).always()
    broker.restart()
    assert ask(broker, "/subjects") == (503, 503)
    fault.disarm()
    assert ask(broker, "/subjects") == []


def test_without_an_effect_it_only_counts_and_leaves_the_call_to_others(
    broker: LocalBroker,
) -> None:
    seen = broker.registry_fault("POST").always()
    broker.registry_fault("POST", error=503).on_call(2)
    broker.registry_fault(error=500).with_probability(0)
    assert register(broker)["id"] == 1
    assert register(broker) == (503, 503)
    assert seen.hits == 2


def test_faults_of_kafka_and_of_the_registry_leave_each_other_alone(broker: LocalBroker) -> None:
    kafka = broker.fault(error="COORDINATOR_NOT_AVAILABLE").always().optional()
    schemas = broker.registry_fault().always()
    broker.produce("orders", "x")
    assert schemas.hits == 0
    assert register(broker)["id"] == 1
    assert (kafka.hits, schemas.hits) == (0, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"method": "PATCH"}, "method is one of GET, HEAD, POST, PUT, DELETE, not 'PATCH'"),
        ({"path": "subjects"}, "a path begins with /"),
        ({"error": 200}, "an error of the schema registry is a status of HTTP"),
        ({"error": 4040}, "an error of the schema registry is a status of HTTP"),
        ({"error": True}, "error is int"),
        ({"at": "while"}, "before or after"),
        ({"topic": "orders"}, "a fault has no 'topic'"),
        ({"effect": "throttle", "ms": 1}, "effect is one of pass, disconnect, delay, blackhole"),
        ({"effect": "delay"}, "the effect delay needs ms"),
        ({"error": 500, "effect": "delay", "ms": 1}, "not both"),
        ({"times": 0}, "times is at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_call_rule(words)


def test_words_of_an_order_mean_the_same() -> None:
    words = {"method": ["get", "POST"], "path": "/subjects/*", "at": "after", "times": 2}
    rule = parse_call_rule({**words, "effect": "delay", "ms": 5, "subject": None})
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
def test_which_subject_a_call_is_about(path: str, query: str, subject: str | None) -> None:
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
def test_a_star_in_a_path_stands_for_anything(pattern: str, hit: bool) -> None:
    rule = CallRule(CallTarget(path=pattern))
    assert rule.takes(Call("GET", "/subjects/s/versions", "s")) is hit


def test_without_a_registry_there_is_nothing_to_fail(thread: BrokerThread) -> None:
    with (
        LocalBroker(thread=thread) as broker,
        pytest.raises(ValueError, match="schema_registry=True"),
    ):
        broker.registry_fault(error=503)
