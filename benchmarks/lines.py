"""Plain connections to a broker that send single requests and read responses."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.primitives import Buffer

from .brokers import BenchmarkFailed, Broker

# Maximum time for a response, and for members to reach a stable group.
SETTLE_SECONDS = 120


class Line:
    """A connection on which requests can be sent before earlier responses have arrived."""

    def __init__(
        self,
        broker: Broker,
        client_id: str = "benchmark",
        address: tuple[str, int] | None = None,
    ) -> None:
        self._client_id = client_id
        self.socket = connect(address or ("127.0.0.1", broker.ports[0]), SETTLE_SECONDS)
        self._sent = 0

    def send(self, requests: Iterable[tuple[ApiKey, int, Any]]) -> None:
        parts: list[Any] = []
        for key, version, message in requests:
            self._sent += 1
            parts += encode_request(key, version, self._sent, self._client_id, message)
        self.socket.sendall(b"".join(map(bytes, parts)))

    def answer(self, key: ApiKey, version: int) -> Any:
        (size,) = struct.unpack(">i", self._receive(4))
        return decoded(key, version, self._receive(size))

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        self.send([(key, version, message)])
        return self.answer(key, version)

    def close(self) -> None:
        self.socket.close()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise BenchmarkFailed("the broker closed a connection")
            data += more
        return bytes(data)


def connect(address: tuple[str, int], seconds: float) -> socket.socket:
    """Return a connection without Nagle's algorithm; `seconds` is the timeout of each operation."""
    stream = socket.create_connection(address, timeout=seconds)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def decoded(key: ApiKey, version: int, answer: Buffer) -> Any:
    """Decode a response without its length prefix."""
    return decode_response(messages.response_class(key), answer, version)[1]
