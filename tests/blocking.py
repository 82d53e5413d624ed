"""A raw client without an event loop, for programs that measure the latency of a broker."""

from __future__ import annotations

import socket
import struct
from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response

from .wire import ANSWER_SECONDS, frame


class BlockingWire:
    """A connection with one request in flight."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self._client_id = client_id
        self._socket = socket.create_connection((host, port), timeout=ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request and return its response.

        Raises:
            OSError: The connection failed.
        """
        self._socket.sendall(frame(key, version, message, self._client_id))
        (size,) = struct.unpack(">i", self._receive(4))
        return decode_response(messages.response_class(key), self._receive(size), version)[1]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data
