"""Tests of the activity counters per client, which use bounded memory."""

from __future__ import annotations

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.handlers.context import Peer
from kbroker.node.activity import CLIENTS_MAX, EVENTS_MAX, NAME_MAX, Activity, is_problem
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.security.login import Exchange, Login
from kbroker.security.principals import Principal


def peer() -> Peer:
    return Peer("10.0.0.1", Endpoint("localhost", 9092), "PLAINTEXT", None)


def test_least_recently_active_clients_are_dropped() -> None:
    activity = Activity(lambda: 5)
    for number in range(CLIENTS_MAX + 10):
        activity.count_request(peer(), f"client-{number}", ApiKey.METADATA)
        activity.count_request(peer(), "steady", ApiKey.METADATA)
    assert len(activity.clients) == CLIENTS_MAX
    assert activity.clients["steady"].requests[ApiKey.METADATA] == CLIENTS_MAX + 10
    assert len(activity.events) == EVENTS_MAX


def test_errors_are_counted_per_row_and_repeated_events_are_merged() -> None:
    activity, client = Activity(lambda: 5), peer()
    cls = MetadataResponse
    rows = [cls.Topic(name=name, error_code=code) for name, code in (("a", 3), ("b", 3), ("c", 0))]
    activity.count_request(client, "shop", ApiKey.METADATA)
    for _ in range(3):
        activity.count_response(client, "shop", ApiKey.METADATA, cls(topics=rows))
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert activity.clients["shop"].errors == {(ApiKey.METADATA, code): 6}
    last = activity.events[-1]
    assert (last.text, last.times) == ("Metadata returned UNKNOWN_TOPIC_OR_PARTITION", 3)
    assert [each.times for each in activity.since(last.number - 1)] == [3]


@pytest.mark.parametrize(
    ("key", "code", "expected"),
    [
        (ApiKey.METADATA, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ApiKey.JOIN_GROUP, ErrorCode.MEMBER_ID_REQUIRED, False),
        (ApiKey.API_VERSIONS, ErrorCode.UNSUPPORTED_VERSION, False),
        (ApiKey.FETCH, ErrorCode.UNSUPPORTED_VERSION, True),
        (ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ApiKey.METADATA, 9999, True),
    ],
)
def test_errors_of_the_protocol_are_no_problems(key: int, code: int, expected: bool) -> None:
    assert is_problem(key, code) is expected


def test_event_of_expected_error_is_no_problem() -> None:
    activity, client = Activity(lambda: 5), peer()
    for code, expected in ((3, False), (29, True)):
        response = MetadataResponse(topics=[MetadataResponse.Topic(name="a", error_code=code)])
        activity.count_response(client, "shop", ApiKey.METADATA, response)
        assert activity.events[-1].is_problem is expected


def test_long_client_names_are_truncated() -> None:
    activity, client = Activity(lambda: 5), peer()
    activity.count_request(client, "x" * 10_000, ApiKey.METADATA)
    activity.count_disconnect(client, "closed by broker", "y" * 10_000)
    (name,) = activity.clients
    assert len(name) == NAME_MAX
    assert len(activity.events[-1].text) < 2 * NAME_MAX
    assert activity.events[-1].is_problem


class ListenerUsers:
    """SASL mechanisms of a listener on which nobody authenticates."""

    mechanisms = ("PLAIN",)

    def exchange(self, mechanism: str) -> Exchange:
        raise AssertionError(mechanism)

    def session_seconds(self, mechanism: str) -> float | None:
        raise AssertionError(mechanism)


def sasl_peer() -> Peer:
    users = ListenerUsers()
    return Peer(
        "10.0.0.1", Endpoint("localhost", 9092), "SASL_PLAINTEXT", None, Login(lambda: users)
    )


def test_sasl_client_has_no_principal_before_its_authentication() -> None:
    activity, client = Activity(lambda: 5), sasl_peer()
    activity.count_request(client, "shop", ApiKey.API_VERSIONS)
    assert activity.clients["shop"].principal == ""
    client.set_principal(Principal("User", "bob"))
    activity.record_login(client)
    assert activity.clients["shop"].principal == "User:bob"
    assert activity.events[-1].text == "authenticated as User:bob"
    activity.count_request(sasl_peer(), "shop", ApiKey.API_VERSIONS)
    assert activity.clients["shop"].principal == "User:bob"


def test_event_of_denied_request_names_user_and_topics() -> None:
    activity, client = Activity(lambda: 5), peer()
    client.set_principal(Principal("User", "bob"))
    cls = MetadataResponse
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [cls.Topic(name=name, error_code=denied) for name in "abcd"]
    rows.append(cls.Topic(name="e"))
    activity.count_response(client, "shop", ApiKey.METADATA, cls(topics=rows))
    produced = ProduceResponse(
        responses=[
            ProduceResponse.Topic(
                name="p", partition_responses=[ProduceResponse.Partition(error_code=denied)]
            )
        ]
    )
    activity.count_response(client, "shop", ApiKey.PRODUCE, produced)
    assert [each.text for each in activity.events] == [
        "Metadata of User:bob returned TOPIC_AUTHORIZATION_FAILED for a, b, c, ...",
        "Produce of User:bob returned TOPIC_AUTHORIZATION_FAILED for p",
    ]
