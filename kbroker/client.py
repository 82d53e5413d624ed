"""The one thin outgoing client: one connection, one request at a time."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response, encode_request

CLIENT_ID = "kbroker"
ANSWER_BYTES_MAX = 128 * 1024 * 1024
CONNECT_SECONDS = 5
CHECK_SECONDS = 10
"""How long a whole check may take: a port can accept connections and never say anything."""


class Client:
    """A connection to a broker. Get one from `connect`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._correlation_id = 0

    async def request(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send one request and return its response.

        Raises OSError when the connection ends before the answer, DecodeError when the answer
        makes no sense.
        """
        self._correlation_id += 1
        parts: list[Any] = list(
            encode_request(key, version, self._correlation_id, CLIENT_ID, message)
        )
        try:
            await self._stream.send_all(b"".join(parts))
            (size,) = struct.unpack(">i", await self._receive(4))
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise OSError(f"an answer of {size} bytes: this is not a Kafka broker")
            frame = await self._receive(size)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(f"the connection broke: {error.__cause__ or error}") from error
        correlation_id, response = decode_response(messages.response_class(key), frame, version)
        if correlation_id != self._correlation_id:
            raise OSError(f"answer {correlation_id} to request {self._correlation_id}")
        return response

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = await self._stream.receive_some(size - len(data))
            if not more:
                raise OSError("the broker closed the connection")
            data += more
        return bytes(data)


@asynccontextmanager
async def connect(host: str, port: int) -> AsyncIterator[Client]:
    """Open a connection to a broker. Raises OSError when that fails within five seconds."""
    with trio.move_on_after(CONNECT_SECONDS) as scope:
        stream = await trio.open_tcp_stream(host, port)
    if scope.cancelled_caught:
        raise OSError(f"no connection to {host}:{port} within {CONNECT_SECONDS} seconds")
    async with stream:
        yield Client(stream)


async def check_round_trip(host: str, port: int) -> Any:
    """Ask a broker for its API versions and its metadata; return the latter.

    Raises OSError or DecodeError when either does not work within ten seconds.
    """
    with trio.move_on_after(CHECK_SECONDS):
        async with connect(host, port) as client:
            hello = messages.request_class(ApiKey.API_VERSIONS)(
                client_software_name=CLIENT_ID, client_software_version="1"
            )
            versions = await client.request(ApiKey.API_VERSIONS, 3, hello)
            served = {row.api_key for row in versions.api_keys}
            if ApiKey.METADATA not in served:
                raise OSError(f"{host}:{port} does not serve Metadata")
            ask = messages.request_class(ApiKey.METADATA)(topics=[])
            return await client.request(ApiKey.METADATA, 9, ask)
    raise OSError(f"no answer from {host}:{port} within {CHECK_SECONDS} seconds")
