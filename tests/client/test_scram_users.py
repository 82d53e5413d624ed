"""Functions that list and change SCRAM users."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.scram_users import (
    ScramUser,
    describe_scram_users,
    remove_scram_password,
    set_scram_password,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..security.scram_logins import SHA_256, SHA_512, logs_in
from ..security.test_login import guarded

ADMIN = Security(None, Credentials("PLAIN", "admin", "hush"))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that requires authentication."""
    async with guarded() as broker:
        yield broker


async def test_scram_users_are_set_described_and_removed(broker: Broker) -> None:
    async with open_cluster([broker.endpoint], security=ADMIN) as cluster:
        await set_scram_password(cluster, "bob", "brush")
        await set_scram_password(cluster, "bob", "crayon", SHA_512, 16384)
        await set_scram_password(cluster, "al", "chalk")
        assert await logs_in(broker, "bob", "brush")
        assert await logs_in(broker, "bob", "crayon", SHA_512)
        bob = ScramUser("bob", {SHA_256: 4096, SHA_512: 16384})
        assert await describe_scram_users(cluster, ["bob", "bob"]) == [bob]
        assert await describe_scram_users(cluster) == [ScramUser("al", {SHA_256: 4096}), bob]
        await remove_scram_password(cluster, "bob", SHA_256)
        assert not await logs_in(broker, "bob", "brush")
        with pytest.raises(KafkaError) as refused:
            await set_scram_password(cluster, "bob", "brush", iterations=100)
        assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
