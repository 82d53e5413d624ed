"""One client connection: bytes to requests to answers, in order.

Two tasks own a connection. The reader does the ordered work of each request as it arrives and puts
what the handler returned into the reply queue; the writer resolves the queue from its left. A
parked answer therefore delays later answers of its own connection, never a later append, and no
task is made for a request. While the writer has nothing to do, the reader sends answers that are
ready itself, which saves waking the writer for each. No lock is needed: the writer is idle only
while it waits for the reader to hand over, and between two waits a task is alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Mapping
from types import CoroutineType
from typing import Any, TypeAlias

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import DecodeError, decode
from kbroker.protocol.framing import FrameError, FrameReader
from kbroker.protocol.headers import RequestHeader, decode_request_header, encode_response

from .context import Context, Peer, Refused
from .handlers.api_versions import refuse_version
from .node import Node
from .registry import Api
from .transport import Transport
from .waiters import Pending, Preparation

logger = logging.getLogger(__name__)
wire_logger = logging.getLogger("kbroker.protocol")

RECEIVE_BYTES = 256 * 1024
REPLIES_MAX = 1024
"""Unanswered requests of one connection; above it the reader stops reading (back-pressure)."""
SEND_BYTES = 1 << 20
"""Answers that are ready are sent together up to this size."""


Reply: TypeAlias = tuple[RequestHeader, Any]
"""An answer's place in the queue: whose it is, and the response or what resolves to it."""


class Connection:
    """Serves one accepted socket until it closes; see the module's text for the two tasks."""

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        transport: Transport,
        peer: Peer,
        *,
        frame_bytes_max: int,
    ) -> None:
        self.peer = peer
        self.opened_at = self.active_at = trio.current_time()
        self.requests = 0
        self._node = node
        self._apis = apis
        self._transport = transport
        self._frames = FrameReader(frame_bytes_max)
        self._replies: deque[Reply] = deque()
        self._unsent: list[Any] = []
        self._writer_idle = False
        self._more_replies = trio.Event()
        self._fewer_replies = trio.Event()
        self._reading = True
        self._parked = False
        self._preparing = False
        self._claimed = 0
        self._traced = wire_logger.isEnabledFor(logging.DEBUG)
        self._scope = trio.CancelScope()

    async def serve(self) -> None:
        """Answer requests until either side closes. Never raises on bad input."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_all)
                    await self._read_all()
                    self._finish_reading()
        except* OSError as group:
            logger.debug("connection from %s ended: %s", self.peer.host, str(group.exceptions[0]))
        except* Exception:
            self._node.unhandled_errors += 1
            logger.exception("unexpected error; closing the connection from %s", self.peer.host)
        finally:
            self._release_memory()
            self._abandon_replies()
            self._transport.close()

    def close(self) -> None:
        """End the connection at once; parked answers are dropped."""
        self._scope.cancel()

    def reset(self) -> None:
        """End the connection at once, and let the peer see an error rather than an end."""
        self._transport.reset()
        self._scope.cancel()

    @property
    def owes_answers(self) -> bool:
        """True while a request is not answered yet."""
        return bool(self._replies or self._unsent or self._preparing)

    @property
    def is_working(self) -> bool:
        """True while a request is not answered yet, but for a fetch that waits for new records."""
        return bool(self._preparing or self._unsent) or any(
            asked.api_key != ApiKey.FETCH or not _is_parked(result)
            for asked, result in self._replies
        )

    def is_overdue(self, now: float, first_request_seconds: float, idle_seconds: float) -> bool:
        """True when the client owes its first request, or has been idle, for too long."""
        if not self.requests:
            return now - self.opened_at > first_request_seconds
        return not self.owes_answers and now - self.active_at > idle_seconds

    # -- reader

    async def _read_all(self) -> None:
        try:
            while await self._read_some():
                await self._handle_frames()
                self._send_or_hand_over()
                while len(self._replies) > REPLIES_MAX:
                    self._fewer_replies = trio.Event()
                    await self._fewer_replies.wait()
        except (Refused, FrameError, DecodeError) as error:
            self._log_refusal(error)

    async def _read_some(self) -> bool:
        """Receive once; False when the peer has closed."""
        buffer = self._frames.next_buffer()
        if buffer is not None:
            if not self._claimed:
                await self._node.request_memory.claim(len(buffer))
                self._claimed = len(buffer)
            size = await self._transport.receive_into(buffer)
            self._frames.received(size)
        else:
            data = await self._transport.receive(RECEIVE_BYTES)
            size = len(data)
            self._frames.feed(data)
        self.active_at = trio.current_time()
        return size > 0

    async def _handle_frames(self) -> None:
        for frame in self._frames:
            header, offset = decode_request_header(frame)
            self.requests += 1
            api = self._apis.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                self._refuse_or_answer(header)
            else:
                request, _ = decode(api.request_class, frame, header.api_version, offset)
                if self._traced:
                    self._trace(header, request)
                unfinished = self._handle(api, header, request)
                if unfinished is not None:
                    await unfinished
            self._release_memory()

    def _trace(self, header: RequestHeader, request: Any) -> None:
        """Log a request, for those who want to see all of them."""
        wire_logger.debug("%s > %s %s", self.peer.host, header, request)

    def _handle(self, api: Api, header: RequestHeader, request: Any) -> Awaitable[None] | None:
        """Do the ordered work of one request, and give its answer a place in the queue.

        Returns None when that is done, as it mostly is, or what is to be awaited for it.
        """
        context = Context(self._node, self._apis, self.peer, header.client_id, header.api_version)
        result = api.handler(context, request)
        if isinstance(result, Preparation):
            return self._reply_prepared(header, result)
        if result is not None:
            self._reply(header, result)
        return None

    async def _reply_prepared(self, header: RequestHeader, preparation: Preparation[Any]) -> None:
        result = await self._prepare(preparation)
        if result is not None:
            self._reply(header, result)

    async def _prepare(self, preparation: Preparation[Any]) -> Any:
        """Finish a request's ordered work before the next request is looked at."""
        self._send_or_hand_over()
        self._preparing = True
        try:
            return await preparation.run()
        finally:
            self._preparing = False

    def _send_or_hand_over(self) -> None:
        """Send what is ready if nothing is before it; leave the rest to the writer."""
        if self._writer_idle:
            self._unsent = self._transport.send_now(self._take_ready())
            if self.owes_answers:
                self._writer_idle = False
                self._more_replies.set()

    def _release_memory(self) -> None:
        """A large frame is done with (or never will be complete): its bytes no longer count."""
        if self._claimed:
            self._node.request_memory.release(self._claimed)
            self._claimed = 0

    def _finish_reading(self) -> None:
        """Nothing more comes in: answers that are ready still go out, parked ones are dropped."""
        self._reading = False
        self._more_replies.set()
        if self._parked:
            self._scope.cancel()

    def _reply(self, header: RequestHeader, result: Any) -> None:
        self._replies.append((header, result))

    def _refuse_or_answer(self, header: RequestHeader) -> None:
        """Only an unknown version of ApiVersions has an answer (KIP-511); all others close."""
        if header.api_key == ApiKey.API_VERSIONS:
            self._reply(header._replace(api_version=0), refuse_version(self._apis))
            return
        software = self.peer.software or "unknown software"
        raise Refused(
            f"{_api_name(header.api_key)} version {header.api_version}, asked by {software}, "
            "is not served"
        )

    def _log_refusal(self, error: Exception) -> None:
        """Say why; the same reason again is for debugging only, or a retrying client fills the log."""
        level = logging.WARNING if self._node.is_news(str(error)) else logging.DEBUG
        logger.log(
            level,
            "closing the connection from %s: %s%s",
            self.peer.host,
            str(error),  # not itself: it knows its frames, and who keeps log records keeps them
            self._frames.hint(),
        )

    # -- writer

    async def _write_all(self) -> None:
        while self._reading or self.owes_answers:
            if self._unsent:
                await self._transport.writable()
                self._unsent = self._transport.send_now(self._unsent)
            elif self._replies:
                await self._resolve_first()
                self._unsent = self._transport.send_now(self._take_ready())
                self._fewer_replies.set()
            else:
                self._writer_idle = True
                self._more_replies = trio.Event()
                await self._more_replies.wait()
        self._scope.cancel()

    async def _resolve_first(self) -> None:
        """Wait until the first answer is ready.

        Raises OSError when nobody is there any more to be answered.
        """
        asked, parked = self._replies[0]
        if not _is_parked(parked):
            await trio.lowlevel.checkpoint()  # who has much to send takes turns with the others
            return
        if not self._reading:
            raise OSError("the client closed before its answer was ready")
        self._parked = True
        response = await (parked.wait() if isinstance(parked, Pending) else parked)
        # The client may have gone in the same moment; half an answer would be worse than none.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._parked = False
        self._replies[0] = (asked, response)

    def _take_ready(self) -> list[Any]:
        """Encode the answers that are ready, in order, up to about `SEND_BYTES`."""
        parts: list[Any] = []
        size = 0
        while self._replies and size < SEND_BYTES:
            asked, response = self._replies[0]
            if _is_parked(response):
                break
            if isinstance(response, Pending):
                response = response.response
            if response is None:
                raise OSError("the answer was given up")
            self._replies.popleft()
            if self._traced:
                wire_logger.debug("%s < %d %s", self.peer.host, asked.correlation_id, response)
            encoded = self._encode(asked, response)
            size += sum(map(len, encoded))
            parts += encoded
        return parts

    def _encode(self, asked: RequestHeader, response: Any) -> list[Any]:
        return encode_response(asked.correlation_id, asked.api_key, asked.api_version, response)

    def _abandon_replies(self) -> None:
        for _, result in self._replies:
            if isinstance(result, Pending):
                result.abandon()
            elif isinstance(result, CoroutineType):
                result.close()
        self._replies.clear()
        self._unsent.clear()


def _is_parked(result: Any) -> bool:
    """Whether an answer has to be waited for."""
    if isinstance(result, Pending):
        return not result.ready
    return isinstance(result, CoroutineType)


def _api_name(key: int) -> str:
    try:
        return f"{ApiKey(key).api_name} ({key})"
    except ValueError:
        return f"API key {key}"
