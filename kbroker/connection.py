"""One client connection: bytes to requests to answers, in order.

Two tasks own a connection. The reader does the ordered work of each request as it arrives and puts
what came of it into the reply queue; the writer resolves the queue from its left. A parked answer
therefore delays later answers of its own connection, never a later append, and no task is made for a
request. While the writer has nothing to do, the reader sends answers that are ready itself, which
saves waking the writer for each. No lock is needed: the writer is idle only while it waits for the
reader to hand over, and between two waits a task is alone.

What was read is finished: when the client goes, the requests that are here already are still carried
out, in order, and their answers dropped. One client does not hold up the others: the reader lets them
have their turn after some milliseconds, in large requests and answers as well, and it stops while the
client does not take the answers that it has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import DecodeError, decode, decode_in_slices
from kbroker.protocol.framing import FrameError, FrameReader
from kbroker.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_response,
    encode_response_in_slices,
)

from .context import Context, Peer, Refused
from .handlers.api_versions import refuse_version
from .node import Node
from .registry import Api
from .request_memory import Claim
from .slices import Turn
from .transport import Transport
from .waiters import Pending, Waiting

logger = logging.getLogger(__name__)
wire_logger = logging.getLogger("kbroker.protocol")

RECEIVE_BYTES = 256 * 1024
REPLIES_MAX = 1024
"""Unanswered requests of one connection; above it the reader stops reading (back-pressure)."""
SEND_BYTES = 1 << 20
"""Answers that are ready are sent together up to this size."""
SMALL_BYTES = 32 * 1024
"""A request of this size is decoded at once, in less than a turn."""

Value = TypeVar("Value")


class Encoded(NamedTuple):
    """An answer as it goes out."""

    parts: list[Any]
    size: int


Reply: TypeAlias = tuple[RequestHeader, Encoded | Pending[Any] | Waiting[Any]]
"""An answer's place in the queue: whose it is, and the bytes or what resolves to a response."""


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
        self._claim = Claim(node.request_memory, peer.host, self._give_up)
        self._turn = Turn()
        self._replies: deque[Reply] = deque()
        self._unsent: list[Any] = []
        self._encoded_bytes = 0
        """Of answers that stand in the queue."""
        self._unsent_bytes_max = node.config.connection_unsent_bytes_max
        self._writer_idle = False
        self._more_replies = trio.Event()
        self._fewer_replies = trio.Event()
        self._reading = True
        self._gone = False
        """Nobody is there to be answered any more."""
        self._parked = False
        self._working = False
        self._traced = wire_logger.isEnabledFor(logging.DEBUG)
        self._scope = trio.CancelScope()
        self._work = trio.CancelScope()

    async def serve(self) -> None:
        """Answer requests until either side closes. Never raises on bad input.

        Raises OutOfMemory when memory runs out again and again.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_all)
                    await self._read_all()
                    self._finish_reading()
        except* OSError as group:
            logger.debug("connection from %s ended: %s", self.peer.host, str(group.exceptions[0]))
        except* MemoryError:
            logger.error("there is no memory; closing the connection from %s", self.peer.host)
            self._node.memory_errors.happened()
        except* Exception:
            self._node.unhandled_errors += 1
            logger.exception("unexpected error; closing the connection from %s", self.peer.host)
        finally:
            self.peer.is_gone = True
            self._claim.release()
            self._abandon_replies()
            self._transport.close()

    def close(self) -> None:
        """End the connection; parked answers are dropped, work that was begun is finished."""
        self._scope.cancel()

    def abort(self) -> None:
        """End the connection at once, whatever it does."""
        self._scope.cancel()
        self._work.cancel()

    def reset(self) -> None:
        """As `abort`, and let the peer see an error rather than an end."""
        self._transport.reset()
        self.abort()

    def _give_up(self) -> None:
        """Others wait for memory that a request holds of which hardly anything comes any more."""
        logger.warning(
            "closing the connection from %s: a large request comes too slowly while others wait for "
            "its memory (queued.max.request.bytes)",
            self.peer.host,
        )
        self.close()

    @property
    def owes_answers(self) -> bool:
        """True while a request is not answered yet."""
        return bool(self._replies or self._unsent or self._working)

    @property
    def is_working(self) -> bool:
        """True while a request is not answered yet, but for a fetch that waits for new records."""
        return bool(self._working or self._unsent) or any(
            asked.api_key != ApiKey.FETCH or not _is_parked(result)
            for asked, result in self._replies
        )

    def is_overdue(self, now: float, first_request_seconds: float, idle_seconds: float) -> bool:
        """True when the client owes its first request, or has been idle, for too long."""
        if self._claim.is_waiting:
            return False  # it is not the client's fault
        if not self.requests:
            return now - self.opened_at > first_request_seconds
        return not self.owes_answers and now - self.active_at > idle_seconds

    # -- reader

    async def _read_all(self) -> None:
        try:
            while await self._read_some():
                self._turn.begin()
                await self._handle_frames()
                self._send_or_hand_over()
                await self._wait_until_answers_are_taken()
        except (Refused, FrameError, DecodeError) as error:
            self._log_refusal(error)

    async def _read_some(self) -> bool:
        """Receive once; False when the peer has closed."""
        if self._gone:
            return False
        buffer = self._frames.next_buffer()
        try:
            if buffer is not None:
                size = await self._transport.receive_into(buffer[:RECEIVE_BYTES])
                self._frames.received(size)
            else:
                data = await self._transport.receive(RECEIVE_BYTES)
                size = len(data)
                self._frames.feed(data)
        except trio.ClosedResourceError:  # by the writer, which has found nobody there
            return False
        if buffer is not None:
            await self._claim_memory(size)
        self.active_at = trio.current_time()
        return size > 0

    async def _claim_memory(self, size: int) -> None:
        """Count what has come of a large request, and wait when there is too much of such."""
        buffer = self._frames.next_buffer()
        left = 0 if buffer is None else len(buffer)
        if not self._claim.take(size, left):
            await self._claim.wait()
            self.opened_at = trio.current_time()

    async def _handle_frames(self) -> None:
        for frame in self._frames:
            header, offset = decode_request_header(frame)
            self.requests += 1
            api = self._apis.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                self._refuse_or_answer(header)
            else:
                if len(frame) <= SMALL_BYTES:
                    request, _ = decode(api.request_class, frame, header.api_version, offset)
                else:
                    request = await self._decode_slowly(api, frame, header.api_version, offset)
                if self._traced:
                    self._trace(header, request)
                unfinished = self._handle(api, header, request)
                if unfinished is not None:
                    await unfinished
            self._claim.release()
            if self._turn.is_over or self._owes_too_much:
                await self._let_others()

    async def _decode_slowly(self, api: Api, frame: Any, version: int, offset: int) -> Any:
        rows_max = self._node.config.request_max_rows
        request, _ = await self._in_turns(
            decode_in_slices(api.request_class, frame, version, offset, objects_max=rows_max)
        )
        return request

    async def _in_turns(self, slices: Generator[None, None, Value]) -> Value:
        """Do work that comes in slices, and let others have their turns between them."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self._turn.pause()

    def _trace(self, header: RequestHeader, request: Any) -> None:
        """Log a request, for those who want to see all of them."""
        wire_logger.debug("%s > %s %s", self.peer.host, header, request)

    def _handle(self, api: Api, header: RequestHeader, request: Any) -> Awaitable[None] | None:
        """Do the ordered work of one request, and give its answer a place in the queue.

        Returns None when that is done, as it mostly is, or what is to be awaited for it.
        """
        result = api.handler(self._context(header), request)
        if type(result) is CoroutineType:
            return self._finish_and_reply(header, result)
        self._reply(header, result)
        return None

    def _context(self, header: RequestHeader) -> Context:
        return Context(
            self._node, self._apis, self.peer, header.client_id, header.api_version, self._turn
        )

    async def _finish_and_reply(
        self, header: RequestHeader, work: Coroutine[Any, Any, Any]
    ) -> None:
        result = await self._finish(work)
        if self._gone or result is None or _is_parked(result):
            self._reply(header, result)
        else:
            # Who could not answer at once may have much to say.
            response = result.response if isinstance(result, Pending) else result
            self._queue(header, await self._encode_slowly(header, response))

    async def _finish(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Finish a request's ordered work before the next request is looked at.

        Once it is begun it comes to its end, whether or not anybody waits for the answer.
        """
        with self._held():
            with trio.CancelScope(shield=True) as self._work:
                return await work
            await trio.sleep_forever()  # the connection was aborted, and here its reader ends

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The reader waits for a while: what is ready goes out before."""
        self._send_or_hand_over()
        self._working = True
        try:
            yield
        finally:
            self._working = False

    @property
    def _owes_too_much(self) -> bool:
        size = self._encoded_bytes + sum(map(len, self._unsent))
        return size > self._unsent_bytes_max or len(self._replies) > REPLIES_MAX

    async def _let_others(self) -> None:
        """Let others have their turn, and wait while the client does not take its answers."""
        self._send_or_hand_over()
        await trio.lowlevel.cancel_shielded_checkpoint()
        await self._wait_until_answers_are_taken()
        self._turn.begin()

    async def _wait_until_answers_are_taken(self) -> None:
        while self._owes_too_much and not self._gone:
            self._fewer_replies = trio.Event()
            await self._fewer_replies.wait()

    def _send_or_hand_over(self) -> None:
        """Send what is ready if nothing is before it; leave the rest to the writer."""
        if self._writer_idle:
            try:
                self._unsent = self._transport.send_now(self._take_ready())
            except OSError as error:
                self._peer_has_gone(error)
            if self.owes_answers or self._gone:
                self._writer_idle = False
                self._more_replies.set()

    def _finish_reading(self) -> None:
        """Nothing more comes in: answers that are ready still go out, parked ones are dropped."""
        self._reading = False
        self._more_replies.set()
        if self._parked:
            self._scope.cancel()

    def _reply(self, header: RequestHeader, result: Any) -> None:
        """Give what came of a request its place in the queue; None is no answer."""
        if isinstance(result, (Pending, Waiting)):
            self._queue(header, result)
        elif result is not None:
            self._queue(header, self._encode(header, result))

    def _queue(self, header: RequestHeader, reply: Encoded | Pending[Any] | Waiting[Any]) -> None:
        if self._gone:
            abandon(reply)
            return
        if isinstance(reply, Encoded):
            self._encoded_bytes += reply.size
        self._replies.append((header, reply))

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
        try:
            while (self._reading or self.owes_answers) and not self._gone:
                if self._unsent:
                    await self._transport.writable()
                    self._unsent = self._transport.send_now(self._unsent)
                elif self._replies:
                    await self._resolve_first()
                    self._unsent = self._transport.send_now(self._take_ready())
                else:
                    self._writer_idle = True
                    self._more_replies = trio.Event()
                    await self._more_replies.wait()
                self._fewer_replies.set()
        except OSError as error:
            self._peer_has_gone(error)
        if not self._gone:
            self._scope.cancel()

    async def _resolve_first(self) -> None:
        """Wait until the first answer is ready.

        Raises OSError when nobody is there any more to be answered.
        """
        asked, parked = self._replies[0]
        if isinstance(parked, Encoded) or not _is_parked(parked):
            await trio.lowlevel.checkpoint()  # who has much to send takes turns with the others
            return
        if not self._reading:
            raise OSError("the client closed before its answer was ready")
        self._parked = True
        response = await (parked.wait() if isinstance(parked, Pending) else parked.begin())
        # The client may have gone in the same moment; half an answer would be worse than none.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._parked = False
        if response is None:
            raise OSError("the answer was given up")
        if isinstance(parked, Waiting):
            encoded = await self._encode_slowly(asked, response)
        else:
            encoded = self._encode(asked, response)
        self._encoded_bytes += encoded.size
        self._replies[0] = (asked, encoded)

    def _take_ready(self) -> list[Any]:
        """The answers that are ready, in order, up to about `SEND_BYTES`."""
        parts: list[Any] = []
        size = 0
        while self._replies and size < SEND_BYTES:
            asked, encoded = self._replies[0]
            if isinstance(encoded, Encoded):
                self._encoded_bytes -= encoded.size
            elif isinstance(encoded, Waiting) or not encoded.ready:
                break
            elif encoded.response is None:
                raise OSError("the answer was given up")
            else:
                encoded = self._encode(asked, encoded.response)
            self._replies.popleft()
            size += encoded.size
            parts += encoded.parts
        return parts

    def _encode(self, asked: RequestHeader, response: Any) -> Encoded:
        self._trace_response(asked, response)
        parts = encode_response(asked.correlation_id, asked.api_key, asked.api_version, response)
        return Encoded(parts, sum(map(len, parts)))

    async def _encode_slowly(self, asked: RequestHeader, response: Any) -> Encoded:
        """As `_encode`, in turns with other clients."""
        self._trace_response(asked, response)
        key, version = asked.api_key, asked.api_version
        slices = encode_response_in_slices(asked.correlation_id, key, version, response)
        parts = await self._in_turns(slices)
        return Encoded(parts, sum(map(len, parts)))

    def _trace_response(self, asked: RequestHeader, response: Any) -> None:
        if self._traced:
            wire_logger.debug("%s < %d %s", self.peer.host, asked.correlation_id, response)

    def _peer_has_gone(self, error: OSError) -> None:
        """Nobody is there to be answered; what was read is finished all the same."""
        logger.debug("connection from %s ended: %s", self.peer.host, error)
        self._gone = True
        self._abandon_replies()
        self._fewer_replies.set()
        self._transport.close()

    def _abandon_replies(self) -> None:
        for _, reply in self._replies:
            abandon(reply)
        self._replies.clear()
        self._unsent.clear()
        self._encoded_bytes = 0


def _is_parked(reply: Any) -> bool:
    """Whether an answer has to be waited for."""
    if isinstance(reply, Pending):
        return not reply.ready
    return isinstance(reply, Waiting)


def abandon(reply: Any) -> None:
    """Nobody waits for an answer any more."""
    if isinstance(reply, Pending):
        reply.abandon()


def _api_name(key: int) -> str:
    try:
        return f"{ApiKey(key).api_name} ({key})"
    except ValueError:
        return f"API key {key}"
