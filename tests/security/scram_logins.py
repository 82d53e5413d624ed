"""Logins by SCRAM."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.security.scram import ScramMechanism

SHA_256, SHA_512 = ScramMechanism


async def logs_in(
    broker: Broker, name: str, password: str, mechanism: ScramMechanism = SHA_256
) -> bool:
    """Return True if the broker accepts the password."""
    security = Security(None, Credentials(mechanism, name, password))
    async with open_cluster([broker.endpoint], security=security) as cluster:
        try:
            await cluster.metadata([])
        except CannotConnect:
            return False
    return True
