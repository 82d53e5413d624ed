"""Functions that create, renew and expire delegation tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.delegation_tokens import (
    DelegationToken,
    create_delegation_token,
    delegation_token,
    describe_delegation_tokens,
    expire_delegation_token,
    renew_delegation_token,
)
from kbroker.client.errors import NoSuchToken
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.principals import USER, Principal

from ..security.test_login import guarded
from ..security.tokens import KEY

ALICE = Security(None, Credentials("PLAIN", "alice", "pencil"))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that requires authentication and accepts delegation tokens."""
    async with guarded(f"delegation.token.secret.key={KEY}") as broker:
        yield broker


async def test_delegation_tokens_are_created_renewed_and_expired(broker: Broker) -> None:
    bob = Principal(USER, "bob")
    async with open_cluster([broker.endpoint], security=ALICE) as cluster:
        first = await create_delegation_token(cluster, [bob], lifetime_ms=60_000)
        second = await create_delegation_token(cluster, owner=bob)
        assert first.max_ms - first.issued_ms == 60_000
        assert (first.owner, second.owner) == (Principal(USER, "alice"), bob)
        assert second.requester == Principal(USER, "alice")
        assert await describe_delegation_tokens(cluster) == [first, second]
        assert first.password not in repr(first)
        assert repr(first.hmac) not in repr(first)
        assert await renew_delegation_token(cluster, first.hmac, 30_000) <= first.expires_ms
        with pytest.raises(KafkaError) as caught:
            await expire_delegation_token(cluster, second.hmac)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        await expire_delegation_token(cluster, first.hmac)
        with pytest.raises(NoSuchToken):
            await delegation_token(cluster, first.id)
        named = Credentials("SCRAM-SHA-256", second.id, second.password, is_delegation_token=True)
    async with open_cluster([broker.endpoint], security=Security(None, named)) as cluster:
        assert (await cluster.metadata([])).cluster_id == broker.node.cluster.id
    assert isinstance(second, DelegationToken)
