"""A connection that sends requests in any version and returns the decoded responses."""

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
    """The broker closed the connection instead of responding."""


class RawConnection:
    """A connection to "host:port" with one request in flight at a time."""

    def __init__(self, address: str, client_id: str = "differential") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        self._sent = 0
        self.client_id = client_id

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request and return its response.

        Raises:
            NoAnswer: The broker closed the connection.
        """
        self.send(key, version, message)
        return self.answer(key, version)

    def send(self, key: ApiKey, version: int, message: Any) -> None:
        """Send a request. Its response is read by `answer`."""
        self._sent += 1
        parts = encode_request(key, version, self._sent, self.client_id, message)
        self._socket.sendall(b"".join(bytes(part) for part in parts))

    def is_answered(self, seconds: float) -> bool:
        """Return True if a response begins to arrive within this time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def answer(self, key: ApiKey, version: int) -> Any:
        """Return the response to the last request.

        Raises:
            NoAnswer: The broker closed the connection.
        """
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
                raise NoAnswer(f"connection closed after {len(data)} of {size} bytes")
            data += more
        return data

    def log_in(self, user: str, password: str) -> None:
        """Authenticate with SASL PLAIN.

        Raises:
            NoAnswer: The broker rejected the user.
        """
        handshake = messages.request_class(ApiKey.SASL_HANDSHAKE)(mechanism="PLAIN")
        assert not self.ask(ApiKey.SASL_HANDSHAKE, 1, handshake).error_code
        shown = f"\0{user}\0{password}".encode()
        message = messages.request_class(ApiKey.SASL_AUTHENTICATE)(auth_bytes=shown)
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 2, message)
        if answer.error_code:
            raise NoAnswer(f"authentication of {user} failed: {answer.error_message}")

    def close(self) -> None:
        self._socket.close()
