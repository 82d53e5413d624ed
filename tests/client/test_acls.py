"""Functions that list and change ACLs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.client.acls import add_acls, describe_acls, describe_rules, remove_acls
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import AuthorizerSettings

from ..security.test_access import guarded
from ..security.test_acls import (
    ALLOW,
    ANY,
    acl,
)

ADMIN = Security(None, Credentials("PLAIN", "admin", "hush"))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that enforces ACLs."""
    async with guarded() as broker:
        yield broker


async def test_acls_are_added_described_and_removed(broker: Broker) -> None:
    ours, foreign = acl(), acl(principal="User:bob")
    async with open_cluster([broker.endpoint], security=ADMIN) as cluster:
        await add_acls(cluster, [foreign, ours, ours])
        assert await describe_acls(cluster, [ANY, ANY]) == [ours, foreign]
        described = await describe_rules(cluster)
        assert described.rules == AuthorizerSettings(frozenset(["User:admin"]))
        assert described.hidden_settings == []
        assert await remove_acls(cluster, [ANY._replace(principal="User:bob"), ANY]) == [
            ours,
            foreign,
        ]
        with pytest.raises(KafkaError) as refused:
            await add_acls(cluster, [acl(permission=type(ALLOW)(1))])
        assert refused.value.code == ErrorCode.INVALID_REQUEST


async def test_rejected_acl_says_how_many_were_created(broker: Broker) -> None:
    valid, invalid = acl(), acl(principal="no type")
    async with open_cluster([broker.endpoint], security=ADMIN) as cluster:
        with pytest.raises(KafkaError, match=r"\(1 of 2 ACLs were created\)"):
            await add_acls(cluster, [valid, invalid])
        assert await describe_acls(cluster, [ANY]) == [valid]
        with pytest.raises(KafkaError) as caught:
            await add_acls(cluster, [invalid])
        assert "of 1" not in str(caught.value)
