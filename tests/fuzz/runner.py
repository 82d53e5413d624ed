"""Send frames through a real connection of a real broker, without sockets, and judge the answers."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from kbroker.connection import Connection
from kbroker.context import Endpoint, Peer
from kbroker.node import Node
from kbroker.protocol import messages
from kbroker.protocol.compile import DecodeError
from kbroker.protocol.framing import FrameReader
from kbroker.protocol.headers import decode_request_header, decode_response
from kbroker.registry import Api
from kbroker.storage.files import FileRange

FRAME_BYTES_MAX = 1 << 20
TURNS = 6
"""How many turns of the event loop a request gets before its client goes away."""


class OneShot:
    """A transport whose client sends some bytes, waits a little, and leaves."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = bytearray()

    async def receive(self, size: int) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        for _ in range(1 if data else TURNS):
            await trio.lowlevel.checkpoint()
        return data

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        for part in parts:
            self.sent += part.read() if isinstance(part, FileRange) else part
        return []

    def close(self) -> None:
        pass


@dataclass
class Report:
    """What came of the frames."""

    frames: int = 0
    handled: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    closed: int = 0
    failures: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For the reader of a test run."""
        total = sum(self.handled.values())
        hits = ", ".join(f"{name} {count}" for name, count in sorted(self.handled.items()))
        figures = (
            f"figures: {self.frames} frames, {total} reached a handler, {self.answers} answered, "
            f"{self.closed} closed without an answer, {len(self.failures)} failures"
        )
        return [figures, f"hits by API: {hits}"]


class Fuzzer:
    """Runs frames against one node, counting what reaches a handler."""

    def __init__(self, node: Node, apis: Mapping[int, Api]) -> None:
        self.report = Report()
        self._node = node
        self._apis = {key: replace(api, handler=self._counted(api)) for key, api in apis.items()}

    def _counted(self, api: Api) -> Any:
        def handler(context: Any, request: Any) -> Any:
            self.report.handled[api.key.api_name] += 1
            return api.handler(context, request)

        return handler

    async def run(self, frames: Iterable[bytes]) -> None:
        """Send each frame over a connection of its own."""
        for data in frames:
            await self._run_one(data)

    async def _run_one(self, data: bytes) -> None:
        report = self.report
        report.frames += 1
        errors = self._node.unhandled_errors
        transport: Any = OneShot(data)
        peer = Peer("127.0.0.1", Endpoint("127.0.0.1", 9092), "PLAINTEXT", None)
        connection = Connection(
            self._node, self._apis, transport, peer, frame_bytes_max=FRAME_BYTES_MAX
        )
        await connection.serve()
        if self._node.unhandled_errors != errors:
            report.failures.append(f"an unexpected error after {data.hex()}")
        if not transport.sent:
            report.closed += 1
            return
        report.answers += 1
        problem = self._judge(data, bytes(transport.sent))
        if problem:
            report.failures.append(f"{problem} after {data.hex()}")

    def _judge(self, data: bytes, sent: bytes) -> str | None:
        """Say what is wrong with what was sent, if anything is."""
        requests = FrameReader(FRAME_BYTES_MAX)
        requests.feed(data)
        (size,) = struct.unpack_from(">i", sent)
        if size < 4:
            return f"an answer of {size} bytes"
        try:
            header, _ = decode_request_header(next(iter(requests)))
            version = header.api_version
            if version not in self._apis[header.api_key].versions:
                version = 0  # of ApiVersions, the only one that is answered then
            got, _ = decode_response(
                messages.response_class(header.api_key), sent[4 : 4 + size], version
            )
        except (DecodeError, KeyError, StopIteration) as error:
            return f"an answer that cannot be read ({error!r})"
        return None if got == header.correlation_id else f"correlation id {got}"
