"""One client connection: its socket and its two tasks.

`Requests` turns the bytes into calls of handlers, and `Replies` holds what is owed to the client.
This module decides when to read, when to send and when to wait.

The reader task does the ordered work of each request as it arrives. The writer task resolves and
sends the replies in order; it starts when there is something for it to do. While it is idle, the
reader sends replies that are ready, and so does the code that resolves the first `Pending` reply.
No lock is needed: a task is alone between two awaits.

An idle connection has no tasks. `Transport.watch` calls `_take` when bytes arrive, and the tasks
start when something has to be awaited. They end after `IDLE_SECONDS` without work.

Requests that were read are completed even if the client disconnects; their replies are dropped.
The reader yields to other connections after some milliseconds, and it stops reading while the
client does not take its replies.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import outcome
import trio

from kbroker.handlers.context import Api, DisconnectError, Peer
from kbroker.node.node import Node
from kbroker.node.request_memory import Claim
from kbroker.partitions.waiters import Pending
from kbroker.protocol.compile import DecodeError, TooManyElements
from kbroker.protocol.framing import FrameError
from kbroker.protocol.schema import Message
from kbroker.runtime.time_slices import TimeSlice
from kbroker.storage.errors import LostBytesError, StorageError

from .replies import Replies, Reply, is_parked
from .requests import Interceptor, Requests
from .transport import Transport

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
# Seconds without work after which the tasks of a connection end.
IDLE_SECONDS = 2.0
# Follows the message about a request with too many array elements.
TOO_MANY = " that one request may have (request.max.elements)"

Intercept: TypeAlias = Callable[[Node, Requests, Replies], Interceptor]
"""Makes the interceptor of a connection, for fault injection."""


class Connection:
    """Serves one accepted socket until it closes.

    Args:
        node: The node that serves the client.
        apis: The served APIs by key.
        transport: The socket.
        peer: The client.
        frame_bytes_max: The largest request in bytes.
        intercept: Makes the interceptor of the requests; None for none.
    """

    __slots__ = (
        "_begun",
        "_came",
        "_failure",
        "_fewer_replies",
        "_has_writer",
        "_is_closing",
        "_is_to_idle",
        "_more_replies",
        "_node",
        "_parked",
        "_pause",
        "_reading",
        "_refusal",
        "_tasks",
        "_transport",
        "_wake",
        "_work",
        "_working",
        "_writer_idle",
        "active_at",
        "is_idle",
        "opened_at",
        "peer",
        "replies",
        "requests",
    )

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        transport: Transport,
        peer: Peer,
        *,
        frame_bytes_max: int,
        intercept: Intercept | None = None,
    ) -> None:
        self.peer = peer
        peer.transport = transport
        self.opened_at = trio.current_time()
        self.active_at = self.opened_at
        """When bytes were last waited for, or replies last taken, in seconds."""
        time_slice = TimeSlice(node.context.fair_queue)
        self.replies = Replies(node, peer, time_slice, trio.current_time)
        self.requests = Requests(
            node,
            apis,
            peer,
            self.replies,
            time_slice,
            Claim(node.request_memory, peer.host, self._give_up),
            frame_bytes_max=frame_bytes_max,
            now=trio.current_time,
        )
        if intercept is not None:
            self.requests.interceptor = intercept(node, self.requests, self.replies)
        self.is_idle = False
        """Bytes are taken without a task."""
        self._node = node
        self._transport = transport
        self._refusal = ""
        """Why kbroker closes the connection; empty if it does not."""
        self._failure: Exception | None = None
        """Raised when a reply was sent by the code that resolved it."""
        self._reading = True
        """More bytes may come."""
        self._parked = False
        """The writer waits for the response of the first reply."""
        self._working = False
        """Requests that were read are being handled."""
        self._begun: Awaitable[None] | None = None
        """The work that the reader has to await next."""
        self._wake: Callable[[Connection], None] | None = None
        """Called when the connection is no longer idle."""
        self._is_closing = False
        """The connection ends, as soon as it is served if it is idle."""
        self._came: outcome.Outcome[None] | None = None
        """The event or error that ended the last idle time."""
        self._have_no_tasks()

    def _have_no_tasks(self) -> None:
        """Set the state that holds before the tasks begin and after they have ended."""
        self._tasks: trio.Nursery | None = None
        self._is_to_idle = False
        """The tasks end, the connection does not."""
        self._work = trio.CancelScope()
        """Around the reader; a shield while a request has to be completed."""
        self._fewer_replies: trio.Event | None = None
        """Wakes the reader, which waits until the client takes replies."""
        self._has_writer = False
        """The writer has begun; most short connections never need it."""
        self._writer_idle = True
        self._more_replies: trio.Event | None = None
        """Wakes the idle writer."""
        self._pause: trio.CancelScope | None = None
        """Around the wait of the idle writer; ends at the deadline of the first reply."""

    # -- life

    def watch_idle(self, wake: Callable[[Connection], None]) -> bool:
        """Take what comes without tasks until one is needed.

        Args:
            wake: Called once when a task is needed. It has to arrange a call of `serve`.

        Returns:
            False if the transport cannot do that; `serve` has to be called now.
        """
        self._wake = wake
        return self._enter_idle()

    async def serve(self) -> bool:
        """Serve the client until either side closes or the connection becomes idle.

        Returns:
            True if it is idle again, which needs an earlier `watch_idle`.

        Raises:
            OutOfMemory: Memory runs out again and again.
        """
        is_idle = False
        try:
            async with trio.open_nursery() as tasks:
                self._tasks = tasks
                if self._has_writer:
                    tasks.start_soon(self._write_all)
                if self._is_closing:
                    tasks.cancel_scope.cancel()
                await self._read_all()
                if not self._is_to_idle:
                    self._finish_reading()
                elif self._has_writer:
                    self._wake_writer()
            if self._is_to_idle and not self._is_closing:
                self._have_no_tasks()
                is_idle = self._enter_idle()
        except BaseExceptionGroup as group:
            self._log_failure(group)
        finally:
            if not is_idle:
                self.end()
        return is_idle

    def suspend_if_idle(self, now: float) -> None:
        """End the tasks if they had nothing to do for `IDLE_SECONDS`."""
        if (
            self._wake is not None
            and now - self.active_at > IDLE_SECONDS
            and self._writer_idle
            and not (self.is_idle or self.owes_replies)
        ):
            self._is_to_idle = self._transport.let_go()

    def _enter_idle(self) -> bool:
        self.is_idle = self._transport.watch(self._take, self._send_all, self._leave_idle)
        return self.is_idle

    def _leave_idle(self, came: outcome.Outcome[None]) -> None:
        if self.is_idle and self._wake is not None:
            self.is_idle = False
            self._came = came
            self._wake(self)

    def end(self) -> None:
        """Release everything: the connection has ended, or its server stops while it is idle."""
        self.is_idle = False
        self.requests.claim.end()
        self.requests.interceptor = None
        self.replies.abandon()
        self.peer.leave()
        self._record_end()
        self._transport.close()

    def _log_failure(self, group: BaseExceptionGroup) -> None:
        """Log why the connection ends. Raises what is no error, such as the end of the node.

        In place of three `except*` clauses, which mypyc does not compile.
        """
        host = self.peer.host
        cut, left = group.split(OSError)
        if cut is not None:
            logger.debug("connection from %s ended: %s", host, str(cut.exceptions[0]))
        no_memory, left = left.split(MemoryError) if left is not None else (None, None)
        if no_memory is not None:
            logger.error("there is no memory; closing the connection from %s", host)
            self._node.context.error_log.memory_errors.happened()
        unexpected, left = left.split(Exception) if left is not None else (None, None)
        if unexpected is not None:
            self._node.context.error_log.unhandled_errors += 1
            logger.error(
                "unexpected error; closing the connection from %s", host, exc_info=unexpected
            )
        if left is not None:
            raise left

    def _record_end(self) -> None:
        """Tell the console why the connection has ended."""
        activity = self._node.activity
        if activity is None:
            return
        if self._refusal:
            activity.leaves(self.peer, "refused", self._refusal)
        else:
            activity.leaves(self.peer, "cut off" if self.requests.is_aborted else "left")

    def close(self) -> None:
        """End the connection. Requests that were begun are completed; waiting replies are dropped."""
        self._is_closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        elif self.is_idle:
            self._transport.let_go()

    def abort(self) -> None:
        """End the connection at once; requests that were read and not begun are dropped."""
        self.requests.is_aborted = True
        self.close()
        self._work.cancel()

    def reset(self) -> None:
        """Abort the connection, and let the client see a reset."""
        self._transport.reset()
        self.abort()

    def _give_up(self) -> None:
        """Close the connection: other requests wait for the memory of its slow request."""
        logger.warning(
            "closing the connection from %s: a large request comes too slowly while others wait for "
            "its memory (queued.max.request.bytes)",
            self.peer.host,
        )
        self.close()

    @property
    def owes_replies(self) -> bool:
        """Return True while a reply to a request is not sent."""
        return bool(self.replies.queue or self.replies.unsent or self._working)

    @property
    def is_working(self) -> bool:
        """Return True while a reply is not sent, other than to a fetch that waits for records."""
        return self._working or self.replies.has_work

    def is_overdue(self, now: float, first_request_seconds: float, idle_seconds: float) -> bool:
        """Return True if the client has been idle, or owes its first request, for too long.

        A client that does not take its replies is idle too: while kbroker does not read, it cannot
        see whether the client is still connected.
        """
        if self.requests.claim.is_waiting:
            return False  # kbroker delays the request, not the client
        if self.requests.awaits_login:
            return now - self.opened_at > first_request_seconds
        is_idle = self.replies.is_full or not self.owes_replies
        return is_idle and now - self.active_at > idle_seconds

    # -- reader

    async def _read_all(self) -> None:
        try:
            with self._work:
                self._raise_what_came()
                while True:
                    if self._begun is not None or self.replies.throttled_until is not None:
                        await self._handle_all()
                        self._send_or_hand_over()
                    if self.replies.is_full:
                        await self._until_replies_are_taken()
                    if not self._reading or self.replies.is_closed or self._is_to_idle:
                        return
                    await self._take_until_something_waits()
        except (DisconnectError, FrameError, DecodeError) as error:
            self._log_refusal(error)
        finally:
            self._working = False

    def _raise_what_came(self) -> None:
        """Raise what was raised while the connection was idle."""
        came, self._came = self._came, None
        try:
            if came is not None:
                came.unwrap()
        except trio.ClosedResourceError:  # a send found the client gone, and closed the socket
            self.replies.is_closed = True
        finally:
            del came  # its traceback references this frame (reference cycle)

    async def _take_until_something_waits(self) -> None:
        """Take what comes until something has to be awaited, or a side has closed."""
        if self.requests.needs_memory():
            await self.requests.claim.wait()
            self.opened_at = trio.current_time()
        self.active_at = trio.current_time()
        try:
            await self._transport.until(self._take, self._send_all)
        except trio.ClosedResourceError:  # a send found the client gone, and closed the socket
            self.replies.is_closed = True
        except trio.Cancelled:
            if self._begun is not None:  # `_take` has begun it already
                await self._shielded(self._handle_all())
            raise

    def _take(self) -> bool:
        """Receive once and handle the complete requests, without a task if nothing has to wait.

        Returns:
            True if the reader task has to continue.
        """
        now = self.active_at = trio.current_time()
        try:
            if not self._receive():
                return not self._reading
        except OSError as error:  # caught here because its traceback would be part of a cycle
            self._lose_client(error)
            return True
        if self.requests.is_throttled:
            return True
        self._working = True
        self.requests.begin(now)
        self._begun = self._handle_some()
        if self._begun is not None:
            return True
        self._working = False
        if self.requests.interceptor is not None:
            self.requests.interceptor.finished()
        return self.replies.throttled_until is not None

    def _send_all(self) -> bool:
        """Send what is ready; return True if the reader task has to continue."""
        self._send_or_hand_over()
        return (
            self.replies.is_closed
            or self._transport.has_more
            or self.replies.is_full
            or self.requests.needs_memory()
        )

    def _receive(self) -> bool:
        """Receive once; return True if there may be complete requests. Raises OSError."""
        frames = self.requests.frames
        buffer = frames.next_buffer()
        if buffer is None:
            data = self._transport.receive_now(RECEIVE_BYTES)
            if not data:
                self._reading = data is None
                return False
            frames.feed(data)
            return not frames.is_waiting  # as for each TLS record of a request but the last
        size = self._transport.receive_into_now(buffer[:RECEIVE_BYTES])
        if not size:
            self._reading = size is None
            return False
        frames.received(size)
        self.requests.claim.count(frames.held, len(buffer) - size)
        return size == len(buffer)

    async def _handle_all(self) -> None:
        """Handle the received requests; those after a request that exceeded a quota wait."""
        while True:
            if self._begun is None:
                while self.requests.is_throttled:
                    # Only what one read brought is held in the meantime: `close` ends it at once.
                    until = self.replies.throttled_until
                    assert until is not None
                    self._send_or_hand_over()
                    await trio.sleep_until(until)
                    if self.replies.throttled_until == until:
                        self.replies.throttled_until = None
                self._working = True
                self.requests.begin(trio.current_time())
            await self._handle_frames()
            self._working = False
            if self.requests.interceptor is not None:
                self.requests.interceptor.finished()
            if not self.requests.is_throttled:
                return

    async def _handle_frames(self) -> None:
        """Handle the complete requests, and await what has to be awaited."""
        while True:
            work, self._begun = self._begun, None
            work = work or self._handle_some()
            if work is None:
                return
            await work
            if self.requests.is_aborted or self.replies.throttled_until is not None:
                return

    def _handle_some(self) -> Awaitable[None] | None:
        """Handle complete requests; return what has to be awaited before the next one."""
        work = self.requests.handle_some()
        if work is not None:
            return self._finish(work)
        return self._yield_to_others() if self.requests.must_yield else None

    async def _finish(self, work: Awaitable[None]) -> None:
        """Complete a request. Once begun, only `abort` ends it."""
        self._send_or_hand_over()
        await self._shielded(self.requests.time_slice.without_waits(work))
        if self.requests.finish_one():
            await self._yield_to_others()

    async def _shielded(self, work: Awaitable[None]) -> None:
        # A cancel scope for each request would cost three times as much.
        self._work.shield = True
        try:
            await work
        finally:
            self._work.shield = False

    async def _yield_to_others(self) -> None:
        """Let other connections have their time slice, and wait until replies are taken."""
        self._send_or_hand_over()
        await self._shielded(self.requests.time_slice.next())
        if self.replies.is_full:
            await self._until_replies_are_taken()
            self.requests.time_slice.begin(trio.current_time())

    async def _until_replies_are_taken(self) -> None:
        while self.replies.is_full and not self.replies.is_closed:
            self._fewer_replies = trio.Event()
            await self._fewer_replies.wait()

    def _finish_reading(self) -> None:
        """Send the replies that are ready, and drop the others: no more requests come."""
        self._reading = False
        if self._has_writer or self.owes_replies:
            self._wake_writer()
        if self._parked:
            self.close()

    def _log_refusal(self, error: Exception) -> None:
        """Log why the connection is closed; at DEBUG if a client repeats it."""
        self._refusal = str(error)
        level = (
            logging.WARNING if self._node.context.error_log.is_new(self._refusal) else logging.DEBUG
        )
        hint = TOO_MANY if isinstance(error, TooManyElements) else self.requests.frames.hint()
        # Log its text: log records are kept by some handlers, and an error references its frames.
        logger.log(level, "closing the connection from %s: %s%s", self.peer.host, str(error), hint)

    # -- sending without the writer

    def _send_or_hand_over(self) -> None:
        """Send what is ready if the writer is idle; leave the rest to the writer."""
        if self._writer_idle:
            replies = self.replies
            try:
                replies.unsent = self._transport.send_now(replies.take_ready())
            except OSError as error:
                self._lose_client(error)
            except StorageError as error:
                self._end_unreadable(error)
            if replies.unsent or replies.is_closed or not self._waits_for_first():
                self._wake_writer()

    def _waits_for_first(self) -> bool:
        """Have the first reply sent when it is resolved; return False if the writer has to act."""
        deadline = self.replies.notify_first_ready(self._send_first)
        if deadline is None:
            return False
        # Setting it costs twenty times as much as comparing it.
        if self._pause is not None and self._pause.deadline != deadline:
            self._pause.deadline = deadline
        if self.replies.queue:
            self._have_writer()  # it watches the deadline
        return True

    def _send_first(self) -> None:
        """Send the first reply, which is resolved now. The resolving code sees no failure."""
        try:
            self._send_or_hand_over()
        except Exception as error:  # noqa: BLE001  # the writer raises it
            self._failure = error
            self._wake_writer()
        self._note_sent()

    def _wake_writer(self) -> None:
        self._writer_idle = False
        if self._more_replies is not None:
            self._more_replies.set()
        self._have_writer()

    def _have_writer(self) -> None:
        if not self._has_writer:
            self._has_writer = True
            if self._tasks is not None:
                self._tasks.start_soon(self._write_all)
            elif self.is_idle:
                self._transport.let_go()

    # -- writer

    async def _write_all(self) -> None:
        replies = self.replies
        try:
            while (self._reading or self.owes_replies) and not (
                replies.is_closed or self._is_to_idle
            ):
                if replies.unsent:
                    await self._transport.writable()
                    replies.unsent = self._transport.send_now(replies.unsent)
                elif not (self._reading and self._waits_for_first()):
                    await self._resolve_first()
                    replies.unsent = self._transport.send_now(replies.take_ready())
                else:
                    await self._pause_writer()
                self._note_sent()
        except OSError as error:
            self._lose_client(error)
        except StorageError as error:
            self._end_unreadable(error)
        except trio.ClosedResourceError:  # the reader found the client gone
            replies.is_closed = True
        if not (replies.is_closed or self._is_to_idle):
            self.close()

    async def _pause_writer(self) -> None:
        """Wait until the reader hands over, or until the deadline of the first reply."""
        self._writer_idle = True
        self._more_replies = trio.Event()
        if self._failure is None:
            with trio.CancelScope() as self._pause:
                self._waits_for_first()
                await self._more_replies.wait()
        self._writer_idle = False
        if self._failure is not None:
            raise self._failure
        self.replies.expire_first(trio.current_time())

    def _note_sent(self) -> None:
        self.active_at = trio.current_time()
        if self._fewer_replies is not None:
            self._fewer_replies.set()

    async def _resolve_first(self) -> None:
        """Wait until `Replies.take_ready` takes the first reply. Raises OSError if it never will."""
        if self.replies.is_first_ready:
            await trio.lowlevel.checkpoint()  # a client that takes much shares the event loop
            return
        first = self.replies.queue[0]
        await self.replies.resolve(first, await self._response_of(first))

    async def _response_of(self, first: Reply) -> Message:
        """Return the response of the first reply. Raises OSError if there will be none."""
        _, reply, _, charge, _ = first
        assert not isinstance(reply, list)
        if is_parked(reply):
            if not self._reading:
                raise OSError("the client closed before the response was ready")
            self._parked = True
        response: Message | None
        if isinstance(reply, Pending):
            response = await reply.wait()
        else:
            response = await (reply.begin() if charge is None else charge.timed(reply.begin()))
        # The client may have gone at the same moment; half a reply would be worse than none.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._parked = False
        if response is None:
            raise OSError("the response was given up")
        return response

    def _lose_client(self, error: OSError) -> None:
        """Drop the replies: the client is gone. Requests that were read are completed."""
        logger.debug("connection from %s ended: %s", self.peer.host, error)
        self.replies.abandon()
        if self._fewer_replies is not None:
            self._fewer_replies.set()
        self._transport.close()

    def _end_unreadable(self, error: StorageError) -> None:
        """End the connection: a reply's header is sent, and its records cannot be read."""
        level, reason = logging.WARNING, error.message
        if isinstance(error, LostBytesError):
            self._node.partitions.report_lost_bytes(error)
            level, reason = logging.INFO, error.cause  # the advice is logged for the partition
        logger.log(level, "closing the connection from %s: %s", self.peer.host, reason)
        self._lose_client(OSError(error.message))
