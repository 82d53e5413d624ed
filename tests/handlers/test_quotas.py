"""Tests of client quotas (KIP-546) over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
)
from kbroker.security.quotas import Entity

from ..brokers import started
from ..wire import (
    connected,
)
from .quota_requests import (
    INVALID,
    alter,
    describe_quotas,
    quotas_by_entity,
    row_of,
    set_quota,
)


async def test_quotas_are_set_changed_and_removed() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await quotas_by_entity(wire) == {}
        await set_quota(wire, {"user": "al"}, producer_byte_rate=1024, request_percentage=50.5)
        await set_quota(wire, {"user": "al", "client-id": None}, consumer_byte_rate=99)
        await set_quota(wire, {"ip": "10.0.0.1"}, connection_creation_rate=7)
        await set_quota(wire, {"user": "al"}, producer_byte_rate=2048, consumer_byte_rate=1)
        assert await quotas_by_entity(wire) == {
            '{"user": "al"}': {
                "producer_byte_rate": 2048,
                "request_percentage": 50.5,
                "consumer_byte_rate": 1,
            },
            '{"user": "al", "client-id": null}': {"consumer_byte_rate": 99},
            '{"ip": "10.0.0.1"}': {"connection_creation_rate": 7},
        }
        await set_quota(wire, {"user": "al"}, producer_byte_rate=None, consumer_byte_rate=None)
        await set_quota(wire, {"ip": "10.0.0.1"}, connection_creation_rate=None)
        await set_quota(wire, {"user": "nobody"}, controller_mutation_rate=None)
        assert await quotas_by_entity(wire) == {
            '{"user": "al"}': {"request_percentage": 50.5},
            '{"user": "al", "client-id": null}': {"consumer_byte_rate": 99},
        }


async def test_filter_returns_matching_quotas() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        entities: list[Entity] = [
            {"user": "al"},
            {"user": None},
            {"user": "al", "client-id": "c"},
            {"user": "al", "client-id": None},
            {"client-id": "c"},
        ]
        for each in entities:
            await set_quota(wire, each, producer_byte_rate=1)
        names = {json.dumps(each): each for each in entities}

        async def find_entities(*components: tuple[Any, ...], strict: bool = False) -> list[Entity]:
            return [
                names[each] for each in await quotas_by_entity(wire, *components, strict=strict)
            ]

        assert await find_entities() == entities
        assert await find_entities(("user", 0, "al")) == [entities[0], entities[2], entities[3]]
        assert await find_entities(("user", 0, "al"), strict=True) == [entities[0]]
        assert await find_entities(("user", 1, None)) == [entities[1]]
        assert await find_entities(("user", 2, None), strict=True) == entities[:2]
        assert await find_entities(("user", 2, None), ("client-id", 1, None)) == [entities[3]]
        assert await find_entities(("client-id", 0, "c")) == [entities[2], entities[4]]
        assert await find_entities(strict=True) == []
        assert (await describe_quotas(wire, version=0)).error_code == 0


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "x")], INVALID),
        ([("user", 0, "x"), ("user", 1, None)], INVALID),
        ([("group", 0, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, None)], INVALID),
        ([("user", 1, "x")], INVALID),
        ([("user", 2, "x")], INVALID),
        ([("user", 3, None)], INVALID),
        ([("user", 2, None), ("ip", 2, None)], INVALID),
    ],
)
async def test_invalid_filter_is_rejected(components: list[tuple[Any, ...]], code: int) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        response = await describe_quotas(wire, *components)
        assert (response.error_code, response.entries) == (code, None)
        assert response.error_message


async def test_invalid_quotas_are_rejected_without_change() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        good = {"producer_byte_rate": 1.0}
        cls = AlterClientQuotasRequest
        twice = row_of({"user": "twice"}, good)
        two_names = row_of({"user": "a"}, good)
        two_names.entity.append(cls.Entity(entity_type="user", entity_name="b"))
        two_values = row_of({"user": "two"}, good)
        two_values.ops.append(cls.Op(key="producer_byte_rate", value=2.0))
        rows = {
            "fine": (row_of({"user": "fine"}, good), 0),
            "nobody": (row_of({}, good), INVALID),
            "kind": (row_of({"group": "g"}, good), INVALID),
            "ip and user": (row_of({"ip": None, "user": "x"}, good), INVALID),
            "key of ip": (row_of({"ip": None}, good), INVALID),
            "unknown key": (row_of({"user": "x"}, {"bytes": 1.0}), INVALID),
            "zero": (row_of({"user": "y"}, {"producer_byte_rate": -1.0}), INVALID),
            "long": (row_of({"user": "x" * 513}, good), INVALID),
            "one key twice": (two_values, INVALID),
            "one type twice": (two_names, INVALID),
        }
        assert await alter(wire, *(row for row, _ in rows.values())) == [
            code for _, code in rows.values()
        ]
        assert await alter(wire, twice, twice) == [INVALID]
        assert [*await quotas_by_entity(wire)] == ['{"user": "fine"}']


async def test_validate_only_changes_no_quotas() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        fine = row_of({"user": "al"}, {"producer_byte_rate": 1})
        bad = row_of({"user": "bo"}, {"producer_byte_rate": -1})
        assert await alter(wire, fine, bad, validate_only=True) == [0, INVALID]
        assert await quotas_by_entity(wire) == {}
        assert broker.node.cluster.client_quotas.of_clients is None


async def test_changed_quotas_are_in_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        caplog.clear()
        with caplog.at_level("INFO", "kbroker.audit"):
            values = {"producer_byte_rate": 1e6, "consumer_byte_rate": None}
            await set_quota(wire, {"user": None, "client-id": "c"}, **values)
    (message,) = (each.getMessage() for each in caplog.records if each.name == "kbroker.audit")
    assert message.startswith("changed: User:ANONYMOUS")
    assert message.endswith(
        "quotas of user=<default>,client-id=c: producer_byte_rate=1000000, no consumer_byte_rate"
    )
