"""Functions that list and change quotas."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.quotas import ClientQuota, alter_quotas, describe_quotas
from kbroker.protocol.errors import ErrorCode, KafkaError


async def test_quotas_are_altered_and_described(broker: Broker) -> None:
    async with open_cluster([broker.endpoint]) as cluster:
        await alter_quotas(cluster, {"user": None}, {"producer_byte_rate": 5.0})
        await alter_quotas(cluster, {"user": "al", "client-id": "c"}, {"consumer_byte_rate": 7.0})
        quota = ClientQuota({"user": "al", "client-id": "c"}, {"consumer_byte_rate": 7.0})
        default = ClientQuota({"user": None}, {"producer_byte_rate": 5.0})
        assert await describe_quotas(cluster) == [default, quota]
        assert await describe_quotas(cluster, {"user": "al"}) == [quota]
        assert await describe_quotas(cluster, {"user": "al"}, strict=True) == []
        assert await describe_quotas(cluster, {"user": None}) == [default]
        with pytest.raises(KafkaError) as refused:
            await alter_quotas(cluster, {"user": "al"}, {"bytes": 1.0})
        assert refused.value.code == ErrorCode.INVALID_REQUEST
