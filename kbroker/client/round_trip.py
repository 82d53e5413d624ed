"""Health check of one broker with two client requests."""

from __future__ import annotations

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .connection import Answer, connect
from .credentials import OPEN, Security
from .errors import CLOSED_WITHOUT_TLS, TlsExpected

# Time limit for the whole check: a port may accept connections and never respond.
CHECK_SECONDS = 10


async def check_round_trip(
    host: str,
    port: int,
    patience_seconds: float = CHECK_SECONDS,
    security: Security = OPEN,
) -> Answer:
    """Request a broker's API versions and its metadata; return the metadata response.

    Args:
        host: Host name or IP address.
        port: TCP port.
        patience_seconds: Time limit for the whole check.
        security: TLS context and credentials.

    Raises:
        OSError: The broker does not respond in time, or rejects the client.
        DecodeError: A response is malformed.
    """
    with trio.move_on_after(patience_seconds):
        # One limit for the whole check: a broker that checks itself may be busy recovering its logs.
        async with connect(host, port, patience_seconds, security.tls) as connection:
            try:
                await connection.negotiate()
            except ConnectionResetError:
                if security.tls is None:
                    raise TlsExpected(CLOSED_WITHOUT_TLS) from None
                raise
            if security.credentials is not None:
                from .security import log_in

                await log_in(connection, security.credentials)
            if ApiKey.METADATA not in connection.versions:
                raise OSError(f"{host}:{port} does not serve Metadata")
            ask = messages.request_class(ApiKey.METADATA)(topics=[])
            return await connection.request(ApiKey.METADATA, 9, ask)
    raise OSError(f"no response from {host}:{port} within {patience_seconds:g} seconds")
