"""One plain connection that sends any request in any version and returns the decoded answer."""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response, encode_request

ANSWER_SECONDS = 20.0


class NoAnswer(Exception):
    """The broker closed the connection instead of answering."""


class RawConnection:
    """A connection to "host:port"; requests are answered one at a time."""

    def __init__(self, address: str, client_id: str = "differential") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        self._sent = 0
        self.client_id = client_id

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request and return its response; raises NoAnswer."""
        self.send(key, version, message)
        return self.answer(key, version)

    def send(self, key: ApiKey, version: int, message: Any) -> None:
        """Send a request, and leave its answer to `answer`."""
        self._sent += 1
        parts = encode_request(key, version, self._sent, self.client_id, message)
        self._socket.sendall(b"".join(bytes(part) for part in parts))

    def is_answered(self, seconds: float) -> bool:
        """Whether the answer begins to arrive in so long a time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def answer(self, key: ApiKey, version: int) -> Any:
        """The response to what was sent; raises NoAnswer."""
        (size,) = struct.unpack(">i", self._receive(4))
        correlation_id, response = decode_response(
            messages.response_class(key), self._receive(size), version
        )
        assert correlation_id == self._sent
        return response

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise NoAnswer(f"after {len(data)} of {size} bytes")
            data += more
        return data

    def log_in(self, user: str, password: str) -> None:
        """Show who asks, by PLAIN; raises NoAnswer where the broker does not know that user."""
        handshake = messages.request_class(ApiKey.SASL_HANDSHAKE)(mechanism="PLAIN")
        assert not self.ask(ApiKey.SASL_HANDSHAKE, 1, handshake).error_code
        shown = f"\0{user}\0{password}".encode()
        message = messages.request_class(ApiKey.SASL_AUTHENTICATE)(auth_bytes=shown)
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 2, message)
        if answer.error_code:
            raise NoAnswer(f"{user} is not let in: {answer.error_message}")

    def close(self) -> None:
        self._socket.close()
