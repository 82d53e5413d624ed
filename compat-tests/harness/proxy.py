"""A TCP proxy between client and broker that drops selected responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque

CHUNK = 1 << 16


class LossyProxy:
    """Forwards everything except selected responses, for which it closes the connection.

    The broker has already executed the request at that point, so clients retry a request that took
    effect. The broker has to advertise the address of the proxy.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.upstream: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._to_drop: dict[int, int] = {}
        self.dropped: dict[int, int] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop(self, api_key: int, count: int) -> None:
        """Drop the next `count` responses to requests with this API key."""
        with self._lock:
            self._to_drop[api_key] = count
            self.dropped[api_key] = 0

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                assert self.upstream is not None
                server = socket.create_connection(self.upstream)
            except OSError:
                client.close()
                continue
            waiting: deque[int] = deque()
            for pump in (self._requests, self._answers):
                threading.Thread(
                    target=_until_closed, args=(pump, client, server, waiting), daemon=True
                ).start()

    def _requests(self, client: socket.socket, server: socket.socket, waiting: deque[int]) -> None:
        while True:
            frame = _read_frame(client)
            waiting.append(struct.unpack_from(">h", frame, 4)[0])
            server.sendall(frame)

    def _answers(self, client: socket.socket, server: socket.socket, waiting: deque[int]) -> None:
        while True:
            frame = _read_frame(server)
            if self._is_lost(waiting.popleft()):
                return
            client.sendall(frame)

    def _is_lost(self, api_key: int) -> bool:
        with self._lock:
            left = self._to_drop.get(api_key, 0)
            if left:
                self._to_drop[api_key] = left - 1
                self.dropped[api_key] += 1
            return left > 0


def _until_closed(
    pump: object, client: socket.socket, server: socket.socket, waiting: deque[int]
) -> None:
    with contextlib.suppress(OSError, EOFError):
        pump(client, server, waiting)  # type: ignore[operator]
    for side in (client, server):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()


def _read_frame(source: socket.socket) -> bytes:
    head = _read_exactly(source, 4)
    return head + _read_exactly(source, struct.unpack(">i", head)[0])


def _read_exactly(source: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = source.recv(min(CHUNK, size - len(parts)))
        if not chunk:
            raise EOFError
        parts += chunk
    return bytes(parts)
