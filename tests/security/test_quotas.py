"""Precedence and validation of client quotas."""

from __future__ import annotations

import itertools
import math

import pytest

from kbroker.security.quotas import (
    AddressLimits,
    BadQuota,
    Entity,
    Limit,
    Limits,
    check_entity,
    check_value,
    text_of,
)

# Entities in Kafka's order of precedence, with the user and client ID that share the quota.
LEVELS: list[tuple[Entity, tuple[str, str]]] = [
    ({"user": "al", "client-id": "c"}, ("al", "c")),
    ({"user": "al", "client-id": None}, ("al", "c")),
    ({"user": "al"}, ("al", "")),
    ({"user": None, "client-id": "c"}, ("al", "c")),
    ({"user": None, "client-id": None}, ("al", "c")),
    ({"user": None}, ("al", "")),
    ({"client-id": "c"}, ("", "c")),
    ({"client-id": None}, ("", "c")),
]


def limits(*entities: Entity) -> Limits:
    made = Limits()
    for number, entity in enumerate(entities):
        made.put(entity, number + 1)
    return made


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(range(8), 2)])
def test_more_specific_quota_wins(first: int, second: int) -> None:
    quotas = limits(LEVELS[second][0], LEVELS[first][0])
    assert quotas.find("al", "c") == Limit(2, *LEVELS[first][1])


@pytest.mark.parametrize("level", range(8))
def test_each_quota_level_applies_alone_until_removed(level: int) -> None:
    entity, shared = LEVELS[level]
    alone = limits(entity)
    assert alone.find("al", "c") == Limit(1, *shared)
    alone.put(entity, None)
    assert alone.find("al", "c") is None
    assert not alone


def test_quotas_of_other_entities_do_not_apply() -> None:
    other_entities = limits({"user": "bo"}, {"client-id": "d"}, {"user": "al", "client-id": "d"})
    assert other_entities.find("al", "c") is None


def test_default_client_id_quota_ignores_clients_without_id() -> None:
    some = limits({"user": "al"}, {"user": "al", "client-id": None}, {"client-id": None})
    assert some.find("al", "") == Limit(1, "al", "")
    assert some.find("al", "c") == Limit(2, "al", "c")
    assert some.find("bo", "") is None
    assert some.find("bo", "c") == Limit(3, "", "c")
    assert limits({"user": None}, {"client-id": "c"}).find("", "") == Limit(1, "", "")
    assert limits({"user": None, "client-id": None}).find("al", "") is None


def test_address_quota_matches_canonical_form_or_default() -> None:
    some = AddressLimits()
    some.put("::1", 5)
    some.put("10.0.0.1", 7)
    assert some.find("0:0:0:0:0:0:0:1") == 5
    assert some.find("10.0.0.2") is None
    some.put(None, 9)
    assert (some.find("10.0.0.1"), some.find("10.0.0.2")) == (7, 9)
    some.put("10.0.0.1", None)
    assert some.find("10.0.0.1") == 9


@pytest.mark.parametrize(
    ("entity", "reason"),
    [
        ({}, "empty"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user"),
        ({"ip": "10.0.0.1", "user": "al"}, "cannot be combined"),
        ({"ip": None, "client-id": "c"}, "cannot be combined"),
        ({"ip": "broker.example"}, "not a valid IP"),
    ],
)
def test_invalid_entity_is_rejected(entity: Entity, reason: str) -> None:
    with pytest.raises(BadQuota, match=reason):
        check_entity(entity)


@pytest.mark.parametrize("entity", [each for each, _ in LEVELS] + [{"ip": "::1"}, {"ip": None}])
def test_valid_entity_is_accepted(entity: Entity) -> None:
    check_entity(entity)


@pytest.mark.parametrize(
    ("entity", "key", "value", "reason"),
    [
        ({"user": "al"}, "bytes", 1, "Invalid configuration key bytes"),
        ({"user": "al"}, "connection_creation_rate", 1, "Invalid configuration key"),
        ({"ip": None}, "producer_byte_rate", 1, "Invalid configuration key"),
        ({"user": "al"}, "producer_byte_rate", 0, "greater than 0"),
        ({"user": "al"}, "request_percentage", -1, "greater than 0"),
        ({"user": "al"}, "request_percentage", math.nan, "a finite number"),
        ({"user": "al"}, "controller_mutation_rate", math.inf, "finite"),
        ({"user": "al"}, "consumer_byte_rate", 1.5, "fractional"),
        ({"user": "al"}, "consumer_byte_rate", 1e19, "too large"),
        ({"ip": None}, "connection_creation_rate", 2**31, "too large"),
    ],
)
def test_invalid_value_is_rejected(entity: Entity, key: str, value: float, reason: str) -> None:
    with pytest.raises(BadQuota, match=reason):
        check_value(entity, key, value)


def test_valid_value_is_accepted() -> None:
    check_value({"user": "al"}, "producer_byte_rate", 1024)
    check_value({"user": "al"}, "producer_byte_rate", 1.0000001)
    check_value({"user": "al"}, "request_percentage", 0.5)
    check_value({"user": "al"}, "controller_mutation_rate", 0.1)
    check_value({"ip": "10.0.0.1"}, "connection_creation_rate", 2**31 - 1)


def test_entity_is_formatted_as_text() -> None:
    assert text_of({"user": "al", "client-id": None}) == "user=al,client-id=<default>"
