"""One client connection: its socket and its two tasks.

`Requests` turns the bytes into calls of handlers, and `Replies` holds the unsent replies.
This module decides when to read, when to send and when to wait.

The reader task does the ordered work of each request as it arrives. The writer task resolves and
sends the replies in order. It starts when a reply has to wait. While it is idle, the reader sends
replies that are ready, and so does the code that resolves the first `Pending` reply.
No lock is needed: a task is alone between two awaits.

An idle connection has no tasks. `Transport.watch` calls `_receive_and_handle` when bytes arrive, and
the tasks start when something has to be awaited. They end after `IDLE_SECONDS` without work.

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
from kbroker.protocol.compile import DecodeError, TooManyElementsError
from kbroker.protocol.framing import FrameError
from kbroker.protocol.schema import Message
from kbroker.runtime.time_slices import TimeSlice
from kbroker.storage.errors import LostBytesError, StorageError

from .replies import Replies, Reply, is_pending
from .requests import Interceptor, Requests
from .transport import Transport

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
# Seconds without work after which the tasks of a connection end.
IDLE_SECONDS = 2.0
# Follows the message about a request with too many array elements.
_ELEMENT_LIMIT_HINT = " of one request (request.max.elements)"

# Creates the interceptor of a connection, for fault injection.
Intercept: TypeAlias = Callable[[Node, Requests, Replies], Interceptor]


class Connection:
    """Connection of one client, from the accepted socket until it is closed.

    Args:
        node: The node that serves the client.
        apis: The served APIs by key.
        transport: The socket.
        peer: The client.
        frame_bytes_max: Maximum size of a request in bytes.
        intercept: Creates the interceptor of the requests; None for none.
    """

    __slots__ = (
        "_awaits_response",
        "_becomes_idle",
        "_close_reason",
        "_failure",
        "_fewer_replies",
        "_has_writer",
        "_idle_outcome",
        "_is_closing",
        "_more_replies",
        "_node",
        "_pause",
        "_reading",
        "_tasks",
        "_transport",
        "_unfinished",
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
        # Last time in seconds at which the reader waited for bytes, or the client took replies.
        self.active_at = self.opened_at
        time_slice = TimeSlice(node.context.fair_queue)
        self.replies = Replies(node, peer, time_slice, trio.current_time)
        peer.replies = self.replies
        self.requests = Requests(
            node,
            apis,
            peer,
            self.replies,
            time_slice,
            Claim(node.limits.memory, peer.host, self._close_slow_request),
            frame_bytes_max=frame_bytes_max,
            now=trio.current_time,
        )
        if intercept is not None:
            self.requests.interceptor = intercept(node, self.requests, self.replies)
        # True while bytes are received without a task.
        self.is_idle = False
        self._node = node
        self._transport = transport
        # Reason why kbroker closes the connection; empty if the client closes it.
        self._close_reason = ""
        # Exception from sending a reply in the code that resolved the reply. The writer raises it.
        self._failure: Exception | None = None
        # False once no more requests are read.
        self._reading = True
        # True while the writer waits for the response of the first reply.
        self._awaits_response = False
        # True while requests that were read are being handled.
        self._working = False
        # The work that the reader has to await next.
        self._unfinished: Awaitable[None] | None = None
        # Called when the connection is no longer idle.
        self._wake: Callable[[Connection], None] | None = None
        # True after `close`. An idle connection then closes when `serve` is called.
        self._is_closing = False
        # The event or error that ended the last idle time.
        self._idle_outcome: outcome.Outcome[None] | None = None
        self._reset_tasks()

    def _reset_tasks(self) -> None:
        """Set the state that holds before the tasks begin and after they have ended."""
        self._tasks: trio.Nursery | None = None
        # True while the tasks end although the connection stays open.
        self._becomes_idle = False
        # Scope of the reader; shielded while a request has to be completed.
        self._work = trio.CancelScope()
        # Wakes the reader, which waits until the client takes replies.
        self._fewer_replies: trio.Event | None = None
        # True if the writer task exists. Most short connections never need the writer.
        self._has_writer = False
        self._writer_idle = True
        # Wakes the idle writer.
        self._more_replies: trio.Event | None = None
        # Scope of the idle writer's wait; ends at the deadline of the first reply, or earlier.
        self._pause: trio.CancelScope | None = None

    # -- lifecycle

    def watch_idle(self, wake: Callable[[Connection], None]) -> bool:
        """Receive and handle requests without tasks until one is needed.

        Args:
            wake: Called once when a task is needed. The callback must arrange a call of `serve`.

        Returns:
            False if the transport needs a task to receive: the caller must call `serve` now.
        """
        self._wake = wake
        return self._enter_idle()

    async def serve(self) -> bool:
        """Serve the client until either side closes or the connection becomes idle.

        Returns:
            True if the connection is idle again, which requires an earlier `watch_idle`.

        Raises:
            OutOfMemory: Memory allocations fail repeatedly.
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
                if not self._becomes_idle:
                    self._finish_reading()
                elif self._has_writer:
                    self._wake_writer()
            if self._becomes_idle and not self._is_closing:
                self._reset_tasks()
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
            # The tasks may take several calls to end if the event loop is delayed.
            and not (self.is_idle or self._becomes_idle or self.owes_replies)
        ):
            self._becomes_idle = self._transport.wake()

    def _enter_idle(self) -> bool:
        self.is_idle = self._transport.watch(
            self._receive_and_handle, self._send_all, self._leave_idle
        )
        return self.is_idle

    def _leave_idle(self, idle_outcome: outcome.Outcome[None]) -> None:
        if self.is_idle and self._wake is not None:
            self.is_idle = False
            self._idle_outcome = idle_outcome
            self._wake(self)

    def end(self) -> None:
        """Release all resources, because the connection closed or the server stopped."""
        self.is_idle = False
        self.requests.claim.end()
        self.requests.interceptor = None
        self.replies.abandon()
        self.peer.close()
        self._record_end()
        self._transport.close()

    def _log_failure(self, group: BaseExceptionGroup) -> None:
        """Log why the connection ends. Raise everything else, such as a cancellation.

        This replaces three `except*` clauses, which mypyc does not compile.
        """
        host = self.peer.host
        disconnected, left = group.split(OSError)
        if disconnected is not None:
            logger.debug("connection from %s ended: %s", host, str(disconnected.exceptions[0]))
        no_memory, left = left.split(MemoryError) if left is not None else (None, None)
        if no_memory is not None:
            logger.error("out of memory; closing the connection from %s", host)
            self._node.context.error_log.memory_errors.record()
        unexpected, left = left.split(Exception) if left is not None else (None, None)
        if unexpected is not None:
            self._node.context.error_log.unhandled_errors += 1
            logger.error(
                "unexpected error; closing the connection from %s", host, exc_info=unexpected
            )
        if left is not None:
            raise left

    def _record_end(self) -> None:
        """Record for the web console why the connection has ended."""
        activity = self._node.activity
        if activity is None:
            return
        if self._close_reason:
            activity.count_disconnect(self.peer, "closed by broker", self._close_reason)
        else:
            kind = "reset" if self.requests.is_aborted else "closed by client"
            activity.count_disconnect(self.peer, kind)

    def close(self) -> None:
        """Close the connection. Complete the requests in progress, and drop pending replies."""
        self._is_closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        elif self.is_idle:
            self._transport.wake()

    def abort(self) -> None:
        """Close the connection at once. Drop requests that were read but not begun."""
        self.requests.is_aborted = True
        self.close()
        self._work.cancel()

    def reset(self) -> None:
        """Abort the connection, and let the client see a reset."""
        self._transport.reset()
        self.abort()

    def _close_slow_request(self) -> None:
        """Close the connection, because other requests wait for the memory of its slow request."""
        logger.warning(
            "closing the connection from %s: a large request arrives too slowly while others wait "
            "for its memory (queued.max.request.bytes)",
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
        if self.requests.awaits_authentication:
            return now - self.opened_at > first_request_seconds
        is_idle = self.replies.is_full or not self.owes_replies
        since = max(self.active_at, self.replies.throttled_until or 0.0)
        return is_idle and now - since > idle_seconds

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count some seconds against the client, for which kbroker may have read nothing."""
        self.opened_at = min(self.opened_at + seconds, now)
        self.active_at = min(self.active_at + seconds, now)

    # -- reader

    async def _read_all(self) -> None:
        try:
            with self._work:
                self._raise_idle_error()
                while True:
                    if self._unfinished is not None or self.replies.throttled_until is not None:
                        await self._handle_all()
                        self._send_or_hand_over()
                    if self.replies.is_full:
                        await self._wait_until_not_full()
                    if not self._reading or self.replies.is_closed or self._becomes_idle:
                        return
                    await self._take_until_blocked()
        except (DisconnectError, FrameError, DecodeError) as error:
            self._log_close_reason(error)
        finally:
            self._working = False

    def _raise_idle_error(self) -> None:
        """Raise the exception that ended the idle time, if any."""
        idle_outcome, self._idle_outcome = self._idle_outcome, None
        try:
            if idle_outcome is not None:
                idle_outcome.unwrap()
        except trio.ClosedResourceError:  # a send found the client gone, and closed the socket
            self.replies.is_closed = True
        finally:
            del idle_outcome  # its traceback references this frame (reference cycle)

    async def _take_until_blocked(self) -> None:
        """Receive and handle requests until something has to be awaited, or a side has closed."""
        if self.requests.needs_memory():
            await self.requests.claim.wait()
            self.opened_at = trio.current_time()
        self.active_at = trio.current_time()
        try:
            await self._transport.until(self._receive_and_handle, self._send_all)
        except trio.ClosedResourceError:  # a send found the client gone, and closed the socket
            self.replies.is_closed = True
        except trio.Cancelled:
            if self._unfinished is not None:  # `_receive_and_handle` has begun it already
                await self._run_shielded(self._handle_all())
            raise

    def _receive_and_handle(self) -> bool:
        """Receive once and handle the complete requests, without a task if nothing has to wait.

        Returns:
            True if the reader task has to continue.
        """
        now = self.active_at = trio.current_time()
        try:
            if not self._receive():
                return not self._reading
        except OSError as error:  # caught here because its traceback would be part of a cycle
            self._handle_disconnect(error)
            return True
        if self.requests.is_throttled:
            return True
        self._working = True
        self.requests.begin(now)
        self._unfinished = self._handle_some()
        if self._unfinished is not None:
            return True
        self._working = False
        if self.requests.interceptor is not None:
            self.requests.interceptor.finished()
        return self.replies.throttled_until is not None

    def _send_all(self) -> bool:
        """Send ready replies, and return True if the reader task has to continue."""
        self._send_or_hand_over()
        return (
            self.replies.is_closed
            or self._transport.has_more
            or self.replies.is_full
            or self.requests.needs_memory()
        )

    def _receive(self) -> bool:
        """Receive once, and return True if there may be complete requests.

        Raises:
            OSError: The client has disconnected.
        """
        frames = self.requests.frames
        buffer = frames.next_buffer()
        if buffer is None:
            data = self._transport.receive_now(RECEIVE_BYTES)
            if not data:
                self._reading = data is None
                return False
            frames.feed(data)
            return not frames.is_waiting  # False for a TLS record in the middle of a request
        size = self._transport.receive_into_now(buffer[:RECEIVE_BYTES])
        if not size:
            self._reading = size is None
            return False
        frames.received(size)
        self.requests.claim.count(frames.held, frames.missing)
        return not frames.missing

    async def _handle_all(self) -> None:
        """Handle the received requests. Wait for the end of a throttle time between them."""
        while True:
            if self._unfinished is None:
                while self.requests.is_throttled:
                    # Only the bytes of one read are held in the meantime; `close` ends the wait.
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
            work, self._unfinished = self._unfinished, None
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
        """Complete a request. Only `abort` cancels it."""
        self._send_or_hand_over()
        await self._run_shielded(self.requests.time_slice.without_waits(work))
        if self.requests.finish_one():
            await self._yield_to_others()

    async def _run_shielded(self, work: Awaitable[None]) -> None:
        # A new cancel scope for each request would cost three times as much as this flag.
        self._work.shield = True
        try:
            await work
        finally:
            self._work.shield = False

    async def _yield_to_others(self) -> None:
        """Let other connections use their time slices, and wait until the client takes replies."""
        self._send_or_hand_over()
        await self._run_shielded(self.requests.time_slice.next())
        if self.replies.is_full:
            await self._wait_until_not_full()
            self.requests.time_slice.begin(trio.current_time())

    async def _wait_until_not_full(self) -> None:
        while self.replies.is_full and not self.replies.is_closed:
            self._fewer_replies = trio.Event()
            await self._fewer_replies.wait()

    def _finish_reading(self) -> None:
        """Send the replies that are ready, and drop the others: no more requests come."""
        self._reading = False
        if self._has_writer or self.owes_replies:
            self._wake_writer()
        if self._awaits_response:
            self.close()

    def _log_close_reason(self, error: Exception) -> None:
        """Log why the connection is closed, at DEBUG if the reason is repeated."""
        self._close_reason = str(error)
        level = (
            logging.WARNING
            if self._node.context.error_log.is_new(self._close_reason)
            else logging.DEBUG
        )
        hint = (
            _ELEMENT_LIMIT_HINT
            if isinstance(error, TooManyElementsError)
            else self.requests.frames.hint()
        )
        # Log the text: some log handlers keep records, and an exception references its frames.
        logger.log(level, "closing the connection from %s: %s%s", self.peer.host, str(error), hint)

    # -- sending without the writer

    def _send_or_hand_over(self) -> None:
        """Send ready replies if the writer is idle. Leave the rest to the writer."""
        if self._writer_idle:
            replies = self.replies
            try:
                replies.unsent = self._transport.send_now(replies.take_ready())
            except OSError as error:
                self._handle_disconnect(error)
            except StorageError as error:
                self._close_unreadable(error)
            if replies.unsent or replies.is_closed or not self._arrange_first_send():
                self._wake_writer()

    def _arrange_first_send(self) -> bool:
        """Arrange that the first reply is sent when resolved. Return False if the writer must act."""
        deadline = self.replies.notify_first_ready(self._send_first)
        if deadline is None:
            return False
        # Setting the deadline costs twenty times as much as comparing it. If it is too early, the
        # writer wakes up once and waits again.
        if self._pause is not None and deadline < self._pause.deadline:
            self._pause.deadline = deadline
        if self.replies.queue:
            self._ensure_writer()  # the writer watches the deadline
        return True

    def _send_first(self) -> None:
        """Send the first reply, which is resolved now. Keep exceptions for the writer."""
        try:
            self._send_or_hand_over()
        except Exception as error:  # noqa: BLE001  # the writer raises it
            self._failure = error
            self._wake_writer()
        self._record_progress()

    def _wake_writer(self) -> None:
        self._writer_idle = False
        if self._more_replies is not None:
            self._more_replies.set()
        self._ensure_writer()

    def _ensure_writer(self) -> None:
        if not self._has_writer:
            self._has_writer = True
            if self._tasks is not None:
                self._tasks.start_soon(self._write_all)
            elif self.is_idle:
                self._transport.wake()

    # -- writer

    async def _write_all(self) -> None:
        replies = self.replies
        try:
            while (self._reading or self.owes_replies) and not (
                replies.is_closed or self._becomes_idle
            ):
                if replies.unsent:
                    await self._transport.writable()
                    replies.unsent = self._transport.send_now(replies.unsent)
                elif not (self._reading and self._arrange_first_send()):
                    await self._resolve_first()
                    replies.unsent = self._transport.send_now(replies.take_ready())
                else:
                    await self._pause_writer()
                self._record_progress()
        except OSError as error:
            self._handle_disconnect(error)
        except StorageError as error:
            self._close_unreadable(error)
        except trio.ClosedResourceError:  # the reader found the client gone
            replies.is_closed = True
        if not (replies.is_closed or self._becomes_idle):
            self.close()

    async def _pause_writer(self) -> None:
        """Wait until the reader hands over, or until the deadline of the first reply."""
        self._writer_idle = True
        self._more_replies = trio.Event()
        if self._failure is None:
            with trio.CancelScope() as self._pause:
                self._arrange_first_send()
                await self._more_replies.wait()
        self._writer_idle = False
        if self._failure is not None:
            raise self._failure
        self.replies.expire_first(trio.current_time())

    def _record_progress(self) -> None:
        self.active_at = trio.current_time()
        if self._fewer_replies is not None:
            self._fewer_replies.set()

    async def _resolve_first(self) -> None:
        """Wait until `Replies.take_ready` can take the first reply.

        Raises:
            OSError: The first reply will never have a response.
        """
        if self.replies.is_first_ready:
            await trio.lowlevel.checkpoint()  # do not starve other clients
            return
        first = self.replies.queue[0]
        await self.replies.resolve(first, await self._response_of(first))

    async def _response_of(self, first: Reply) -> Message:
        """Return the response of the first reply.

        Raises:
            OSError: There will be no response.
        """
        _, reply, _, charge, _ = first
        assert not isinstance(reply, list)
        if is_pending(reply):
            if not self._reading:
                raise OSError("the client disconnected before the response was ready")
            self._awaits_response = True
        response: Message | None
        if isinstance(reply, Pending):
            response = await reply.wait()
        else:
            response = await (reply.begin() if charge is None else charge.timed(reply.begin()))
        # The client may have disconnected at the same time; do not send a partial reply.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._awaits_response = False
        if response is None:
            raise OSError("the response was dropped")
        return response

    def _handle_disconnect(self, error: OSError) -> None:
        """Drop the replies, because the client disconnected. Requests in progress are completed."""
        logger.debug("connection from %s ended: %s", self.peer.host, error)
        self.replies.abandon()
        if self._fewer_replies is not None:
            self._fewer_replies.set()
        self._transport.close()

    def _close_unreadable(self, error: StorageError) -> None:
        """Close the connection, because the records of a partly sent reply cannot be read."""
        level, reason = logging.WARNING, error.message
        if isinstance(error, LostBytesError):
            self._node.partitions.report_lost_bytes(error)
            level, reason = logging.INFO, error.cause  # the partition logs the advice
        logger.log(level, "closing the connection from %s: %s", self.peer.host, reason)
        self._handle_disconnect(OSError(error.message))
