"""The question whether a broker answers, as its clients ask."""

from __future__ import annotations

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .connection import Answer, connect
from .credentials import OPEN, Security

CHECK_SECONDS = 10
"""How long a whole check may take: a port can accept connections and never say anything."""


async def check_round_trip(
    host: str,
    port: int,
    patience_seconds: float = CHECK_SECONDS,
    security: Security = OPEN,
) -> Answer:
    """Ask a broker for its API versions and its metadata; return the latter.

    Raises OSError or DecodeError when either does not work within `patience_seconds`.
    """
    with trio.move_on_after(patience_seconds):
        # One limit for all of it: a server that asks itself may be busy with its directories.
        async with connect(host, port, patience_seconds, security.tls) as connection:
            await connection.negotiate()
            if security.credentials is not None:
                from .security import log_in

                await log_in(connection, security.credentials)
            if ApiKey.METADATA not in connection.versions:
                raise OSError(f"{host}:{port} does not serve Metadata")
            ask = messages.request_class(ApiKey.METADATA)(topics=[])
            return await connection.request(ApiKey.METADATA, 9, ask)
    raise OSError(f"no answer from {host}:{port} within {patience_seconds:g} seconds")
