"""One client connection: bytes to requests to answers, in order.

Two tasks own a connection, the second of which begins when there is something to do for it. The reader
does the ordered work of each request as it arrives and puts what came of it into the reply queue; the
writer resolves the queue from its left. What the reader does without waiting is a plain call of whoever
watches the sockets of all clients (`_take`), and its task goes on only when there is something to wait
for. A parked answer therefore delays later answers of its own connection, never a later append, and no
task is made for a request. Only a Produce request follows another one at once; any other one is looked
at when the records that came before it are in place, so that it sees them. While the writer has nothing
to do, the reader sends answers that are ready itself, and whoever gives the answer that is the next one
in the queue, as the one who has synced its records does, sends that: the writer is not woken for each.
No lock is needed: between two waits a task is alone.

A connection that has nothing to wait for but its client *rests*: it has no tasks, which take four times
as much memory as the rest of it. What comes is taken by the same plain call; the tasks begin when there is
something to wait for, and end when there was nothing for some time. So thousands that are only held open
cost little.

What was read is finished: when the client goes, the requests that are here already are still carried
out, in order, and their answers dropped; only what just asks for an answer is left out. One client
does not hold up the others: the reader lets them have their turn after some milliseconds, in large
requests and answers as well, and it stops while the client does not take the answers that it has.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import outcome
import trio

from kbroker.handlers.api_versions import refuse_version
from kbroker.handlers.context import Context, Peer, Refused
from kbroker.handlers.registry import Api
from kbroker.node.metering import Toll
from kbroker.node.node import Node
from kbroker.node.request_memory import Claim
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import (
    OBJECTS_MAX,
    DecodeError,
    Encoded,
    TooManyElements,
    decode_counted,
    decode_in_slices,
    with_throttle_time,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import FrameError, FrameReader
from kbroker.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_response,
    encode_response_in_slices,
)
from kbroker.protocol.messages import response_class
from kbroker.runtime.slices import Turn
from kbroker.security.acls import Client
from kbroker.security.errors import LoginFailed
from kbroker.storage.errors import StorageError, UnreadableError

from .transport import Transport

if TYPE_CHECKING:
    from kbroker.security.login import Login

try:
    from mypy_extensions import mypyc_attr
except ImportError:

    def mypyc_attr(**attributes: object) -> Callable[[type], type]:  # type: ignore[misc]
        """What only the compiler wants to know."""
        return lambda kind: kind


logger = logging.getLogger(__name__)
wire_logger = logging.getLogger("kbroker.protocol")

RECEIVE_BYTES = 256 * 1024
REPLIES_MAX = 1024
"""Unanswered requests of one connection; above it the reader stops reading (back-pressure)."""
SEND_BYTES = 1 << 20
"""Answers that are ready are sent together up to this size."""
TOO_MANY = " that one request may have (request.max.rows)"
"""What follows after a message that says so."""
SMALL_BYTES = 32 * 1024
"""A request of this size is decoded at once, in less than a turn."""
SMALL_ELEMENTS = 64
"""So is one whose arrays have so few elements: what else it has are records, which stay as they are,
and texts of at most 32 kB."""
SMALL_ROWS = 1000
"""The answer to a request that names so many is encoded at once, in less than a turn."""
ROW_BYTES = 128
"""What each row of an answer takes that is still to come, or is not encoded yet, about."""

REST_SECONDS = 2.0
"""A connection whose tasks had nothing to do for so long rests."""

LIGHT_BYTES = 1024
"""A Produce request of this size costs little."""
LIGHT_MAX = 16
"""How many such are handled before it is looked whether the turn is over."""

_PRODUCE = int(ApiKey.PRODUCE)  # a plain number: every request asks


_LONG_POLLS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
_OF_NODES = frozenset({ApiKey.WRITE_TXN_MARKERS})
"""What only nodes ask takes nothing of quotas; followers do not either, who fetch as clients do."""

_RAW = RequestHeader(int(ApiKey.SASL_AUTHENTICATE), 0, 0, None)
"""Stands for the request that an answer without a header belongs to."""

Parts: TypeAlias = list[Any]
"""An answer as it goes out."""
Unencoded: TypeAlias = Pending[Any] | Waiting[Any]
Reply: TypeAlias = tuple[RequestHeader, Parts | Unencoded, int, Toll | None, float]
"""An answer's place in the queue: whose it is, its parts or what resolves to a response, its size,
which is a guess until it is encoded, what it takes of quotas, and when its request came."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """Serves one accepted socket until it closes; see the module's text for the two tasks."""

    __slots__ = (
        "_aborted",
        "_activity",
        "_apis",
        "_appending",
        "_asked",
        "_begun",
        "_came",
        "_came_at",
        "_claim",
        "_failure",
        "_fewer_replies",
        "_frame_bytes_max",
        "_frames",
        "_gone",
        "_has_writer",
        "_is_closing",
        "_is_to_rest",
        "_login",
        "_meters",
        "_more_replies",
        "_muted_until",
        "_node",
        "_parked",
        "_pause",
        "_queued_bytes",
        "_quotas",
        "_reading",
        "_refusal",
        "_replies",
        "_tasks",
        "_toll",
        "_traced",
        "_transport",
        "_turn",
        "_unsent",
        "_unsent_bytes_max",
        "_wake",
        "_work",
        "_working",
        "_writer_idle",
        "active_at",
        "opened_at",
        "peer",
        "requests",
        "rests",
    )

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
        self.opened_at = trio.current_time()
        self.active_at = self.opened_at
        """When bytes were last waited for, or answers last taken."""
        self.requests = 0
        self._node = node
        self._apis = apis
        self._transport = transport
        self._frames = FrameReader(frame_bytes_max)
        self._quotas = node.cluster.client_quotas
        self._meters = node.meters
        self._asked = node.meters.requests
        self._activity = node.activity
        """Whom to tell of each request; None while nobody may look."""
        self._refusal = ""
        """Why the connection is closed, where the client sent what is not answered."""
        self._came_at = 0.0
        """When what is being handled was read, as `time.perf_counter` says."""
        self._toll: Toll | None = None
        """What the request takes that is being handled; None where nobody has a quota."""
        self._muted_until: float | None = None
        """Nothing more is handled before (KIP-219)."""
        self._claim = Claim(node.request_memory, peer.host, self._give_up)
        self._turn = Turn(node.turns)
        self._replies: deque[Reply] = deque()
        self._unsent: list[Any] = []
        self._queued_bytes = 0
        """Of the answers that stand in the queue."""
        self._unsent_bytes_max = node.config.connection_unsent_bytes_max
        self._failure: Exception | None = None
        """What went wrong with an answer that somebody else sent."""
        self._reading = True
        """Something more may come."""
        self._gone = False
        """Nobody is there to be answered any more."""
        self._aborted = False
        """Nothing more is done."""
        self._parked = False
        self._appending = False
        """There may be an answer in the queue that waits for records to be in place."""
        self._working = False
        """Requests that were read are being handled."""
        self._begun: Awaitable[None] | None = None
        """What is to be waited for next."""
        self._login = peer.login
        """While the client has to log in before anything else, or will have to again."""
        if self._login is not None:
            self._frames.limit = node.config.login_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._traced = wire_logger.isEnabledFor(logging.DEBUG)
        self._wake: Callable[[Connection], None] | None = None
        """Whom to tell when a rest is over."""
        self.rests = False
        """What comes is taken without a task."""
        self._is_closing = False
        """The connection is to end, if need be as soon as it is served."""
        self._came: outcome.Outcome[None] | None = None
        """What ended the last rest."""
        self._have_no_tasks()

    def _have_no_tasks(self) -> None:
        """As before the tasks begin, and after they have ended."""
        self._tasks: trio.Nursery | None = None
        """Around all that is done by `serve`."""
        self._is_to_rest = False
        """They are to end without the connection."""
        self._work = trio.CancelScope()
        """Around all that the reader does; a shield while it is to come to its end."""
        self._fewer_replies: trio.Event | None = None
        """What the reader waits for while too many answers are not taken."""
        self._has_writer = False
        """The second task is there; most of those who come and go never need it."""
        self._writer_idle = True
        self._more_replies: trio.Event | None = None
        """What the writer waits for that has nothing to do."""
        self._pause: trio.CancelScope | None = None
        """Around that: it ends at the deadline of the first answer."""

    def rest(self, wake: Callable[[Connection], None]) -> bool:
        """Take what comes without a task until one is needed: then `wake` is told, and has `serve` called.

        Returns False where that cannot be, and `serve` has to be called now.
        """
        self._wake = wake
        return self._lie_down()

    async def serve(self) -> bool:
        """Answer requests until either side closes, or it rests again. Never raises on bad input.

        Returns whether it rests; only who has had it `rest` before hears True. Raises OutOfMemory when
        memory runs out again and again.
        """
        rests = False
        try:
            async with trio.open_nursery() as tasks:
                self._begin_tasks(tasks)
                await self._read_all()
                if not self._is_to_rest:
                    self._finish_reading()
                elif self._has_writer:
                    self._wake_writer()
            if self._is_to_rest and not self._is_closing:
                self._have_no_tasks()
                rests = self._lie_down()
        except BaseExceptionGroup as group:
            self._end_by(group)
        finally:
            if not rests:
                self.end()
        return rests

    def _begin_tasks(self, tasks: trio.Nursery) -> None:
        """Go on with what was left to the tasks before they began."""
        self._tasks = tasks
        if self._has_writer:
            tasks.start_soon(self._write_all)
        if self._is_closing:
            tasks.cancel_scope.cancel()

    def rest_if_idle(self, now: float) -> None:
        """Let the tasks end if they had nothing to do for some time."""
        if (
            self._wake is not None
            and now - self.active_at > REST_SECONDS
            and self._writer_idle
            and not (self.rests or self.owes_answers)
        ):
            self._is_to_rest = self._transport.let_go()

    def _lie_down(self) -> bool:
        """Rest. False where that cannot be."""
        self.rests = self._transport.watch(self._take, self._answer_all, self._go_on)
        return self.rests

    def _go_on(self, came: outcome.Outcome[None]) -> None:
        """The rest is over."""
        if self.rests and self._wake is not None:
            self.rests = False
            self._came = came
            self._wake(self)

    def end(self) -> None:
        """The connection has ended, or nobody serves it any more while it rests."""
        self.rests = False
        self._claim.end()
        self._abandon_replies()
        self.peer.leave()
        self._tell_of_end()
        self._transport.close()

    def _end_by(self, group: BaseExceptionGroup) -> None:
        """Say why the connection ends. Raises what is nobody's error, as when the node stops.

        As three clauses of `except*`, which mypyc does not compile.
        """
        left: BaseExceptionGroup | None = group
        for kind, tell in (
            (OSError, self._was_cut),
            (MemoryError, self._has_no_memory),
            (Exception, self._met_a_defect),
        ):
            found, left = left.split(kind) if left is not None else (None, None)
            if found is not None:
                tell(found)
        if left is not None:
            raise left

    def _was_cut(self, group: BaseExceptionGroup) -> None:
        logger.debug("connection from %s ended: %s", self.peer.host, str(group.exceptions[0]))

    def _has_no_memory(self, _: BaseExceptionGroup) -> None:
        logger.error("there is no memory; closing the connection from %s", self.peer.host)
        self._node.troubles.memory_errors.happened()

    def _met_a_defect(self, group: BaseExceptionGroup) -> None:
        self._node.troubles.unhandled_errors += 1
        logger.error(
            "unexpected error; closing the connection from %s", self.peer.host, exc_info=group
        )

    def _tell_of_end(self) -> None:
        """Tell who may look why the connection has ended."""
        if self._activity is None:
            return
        if self._refusal:
            self._activity.leaves(self.peer, "refused", self._refusal)
        else:
            self._activity.leaves(self.peer, "cut off" if self._aborted else "left")

    def close(self) -> None:
        """End the connection; parked answers are dropped, work that was begun is finished."""
        self._is_closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        elif self.rests:
            self._transport.let_go()

    def abort(self) -> None:
        """End the connection at once, whatever it does; what was read and not begun never is."""
        self._aborted = True
        self.close()
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
            asked.api_key not in _LONG_POLLS or not _is_parked(result)
            for asked, result, _, _, _ in self._replies
        )

    def is_overdue(self, now: float, first_request_seconds: float, idle_seconds: float) -> bool:
        """True when the client owes its first request, or has been idle, for too long.

        Who neither takes its answers nor lets them become fewer is idle as well: whether somebody is
        still there is not seen while nothing is read.
        """
        if self._claim.is_waiting:
            return False  # it is not the client's fault
        if not self.requests or (self._login is not None and not self._login.has_session):
            return now - self.opened_at > first_request_seconds
        is_idle = self._owes_too_much or not self.owes_answers
        return is_idle and now - self.active_at > idle_seconds

    # -- reader

    async def _read_all(self) -> None:
        try:
            with self._work:
                self._hear_what_came()
                while True:
                    if self._begun is not None or self._muted_until is not None:
                        await self._handle_all()
                        self._send_or_hand_over()
                    if self._owes_too_much:
                        await self._wait_until_answers_are_taken()
                    if not self._reading or self._gone or self._is_to_rest:
                        return
                    await self._take_until_something_waits()
        except (Refused, FrameError, DecodeError) as error:
            self._log_refusal(error)
        finally:
            self._working = False

    def _hear_what_came(self) -> None:
        """Raise what was raised while the connection rested."""
        came, self._came = self._came, None
        try:
            if came is not None:
                came.unwrap()
        except trio.ClosedResourceError:  # by who has found nobody there
            self._gone = True
        finally:
            del came  # an error knows this frame, and together they would be a circle of objects

    async def _take_until_something_waits(self) -> None:
        """Take what comes, until something has to be waited for, or somebody has closed."""
        if self._must_wait_for_memory():
            await self._claim.wait()
            self.opened_at = trio.current_time()
        self.active_at = trio.current_time()
        try:
            await self._transport.until(self._take, self._answer_all)
        except trio.ClosedResourceError:  # by who has found nobody there
            self._gone = True
        except trio.Cancelled:
            if self._begun is not None:  # by what was taken itself
                await self._shielded(self._handle_all())
            raise

    def _take(self) -> bool:
        """Receive once, and handle what is whole then; True when the reader has to go on itself.

        Most requests have nothing to wait for, and need no turn of the event loop for their own.
        """
        self.active_at = trio.current_time()
        try:
            if not self._receive():
                return not self._reading
        except OSError as error:  # further up its traceback would be part of a circle of objects
            self._peer_has_gone(error)
            return True
        if self._is_muted:
            return True
        self._begin()
        self._begun = self._handle_some()
        if self._begun is not None:
            return True
        self._working = False
        return self._muted_until is not None

    def _answer_all(self) -> bool:
        """Send what is ready; True when the reader has to go on itself."""
        self._send_or_hand_over()
        return (
            self._gone
            or self._transport.has_more
            or self._owes_too_much
            or self._must_wait_for_memory()
        )

    def _must_wait_for_memory(self) -> bool:
        """Count what is here of a large request that is not whole; whether there is no room for more."""
        buffer = self._frames.next_buffer()
        if buffer is None:
            return False
        self._claim.count(self._frames.held, len(buffer))
        return not self._claim.may_go_on

    def _receive(self) -> bool:
        """Receive once; whether there may be whole requests now. Raises OSError."""
        buffer = self._frames.next_buffer()
        if buffer is None:
            data = self._transport.receive_now(RECEIVE_BYTES)
            if not data:
                self._reading = data is None
                return False
            self._frames.feed(data)
            return not self._frames.is_waiting  # as for each TLS record of a request but the last
        size = self._transport.receive_into_now(buffer[:RECEIVE_BYTES])
        if not size:
            self._reading = size is None
            return False
        self._frames.received(size)
        self._claim.count(self._frames.held, len(buffer) - size)
        return size == len(buffer)

    def _begin(self) -> None:
        """Begin with what has just come."""
        self._turn.begin()
        self._came_at = time.perf_counter()
        self._working = True

    async def _handle_all(self) -> None:
        """Handle what has come; what stands behind a request that went over a quota waits.

        A large one that is half here comes in whole before: it has taken memory that others need.
        """
        while True:
            if self._begun is None:
                while self._is_muted:
                    await self._stay_muted()
                self._begin()
            await self._handle_frames()
            self._working = False
            if not self._is_muted:
                return

    @property
    def _is_muted(self) -> bool:
        return self._muted_until is not None and not self._frames.held

    async def _stay_muted(self) -> None:
        """Nothing is held meanwhile but what has come in one read: `close` ends it at once."""
        until = self._muted_until
        assert until is not None
        self._send_or_hand_over()
        await trio.sleep_until(until)
        if self._muted_until == until:
            self._muted_until = None

    def _mute(self, milliseconds: int) -> None:
        until = trio.current_time() + milliseconds / 1000
        self._muted_until = max(self._muted_until or until, until)

    async def _handle_frames(self) -> None:
        """Handle the requests that are whole, and wait for what is to be waited for."""
        while True:
            work, self._begun = self._begun, None
            work = work or self._handle_some()
            if work is None:
                return
            await work
            if self._aborted or self._muted_until is not None:
                return

    def _handle_some(self) -> Awaitable[None] | None:
        """Handle the requests that are whole until one has something to wait for; returns that."""
        light = 0
        for frame in self._frames:
            unfinished = self._handle_frame(frame)
            if unfinished is not None:
                return self._finish(unfinished)
            if self._muted_until is None and self._appending and len(frame) <= LIGHT_BYTES:
                light += 1
                if light <= LIGHT_MAX:
                    continue
            light = 0
            if self._has_had_its_turn():
                return self._let_others()
            if self._aborted or self._muted_until is not None:
                break
        return None

    def _handle_frame(self, frame: memoryview) -> Awaitable[None] | None:
        """Handle one request; returns what is still to be awaited for it."""
        if self._login is not None and self._login.takes_raw_messages:
            return self._answer_raw(self._login, bytes(frame))
        header, offset = decode_request_header(frame)
        self.requests += 1
        self._toll = None if self._quotas.of_clients is None else self._toll_of(header, frame)
        if self._login is not None:
            self._ask_login(self._login, header)
        if header.api_key == _PRODUCE:
            self._appending = True
        elif self._appending:
            return self._serve_behind_records(header, frame, offset)
        return self._decode_and_handle(header, frame, offset)

    async def _serve_behind_records(
        self, header: RequestHeader, frame: memoryview, offset: int
    ) -> None:
        await self._until_appended()
        unfinished = None if self._aborted else self._decode_and_handle(header, frame, offset)
        if unfinished is not None:
            await unfinished

    def _decode_and_handle(
        self, header: RequestHeader, frame: memoryview, offset: int
    ) -> Awaitable[None] | None:
        """Decode a request whose header is known, and handle it."""
        api = self._apis.get(header.api_key)
        if api is None or header.api_version not in api.versions:
            self._refuse_or_answer(header)
            return None
        if self._gone and api.only_looks:
            return None
        elements_max = SMALL_ELEMENTS if len(frame) > SMALL_BYTES else OBJECTS_MAX
        try:
            request, _, rows = decode_counted(
                api.request_class, frame, header.api_version, offset, elements_max
            )
        except TooManyElements:
            return self._handle_large(api, header, frame, offset)
        if self._traced:
            self._trace(header, request)
        return self._handle(api, header, request, rows)

    def _has_had_its_turn(self) -> bool:
        """What follows each request; whether the others are to have their turn before the next."""
        if self._login is not None:
            self._look_at_login(self._login)
        self._claim.release()
        return self._turn.is_over or self._owes_too_much

    def _toll_of(self, header: RequestHeader, frame: memoryview) -> Toll | None:
        """What a request takes, now that there are quotas."""
        if header.api_key in _OF_NODES:
            return None
        user = self.peer.client.principal.name
        return self._node.metering.toll(user, header.client_id, len(frame))

    def _ask_login(self, login: Login, header: RequestHeader) -> None:
        """Raise Refused for a request that has no place now.

        Amidst a login Kafka answers it, without looking at what is asked for.
        """
        objection = login.objection(header.api_key, trio.current_time())
        if not objection:
            return
        api = self._apis.get(header.api_key)
        if login.is_under_way and api is not None and header.api_version in api.versions:
            self._reply(header, _out_of_place(header.api_key))
        raise Refused(f"{_api_name(header.api_key)} {objection}")

    async def _answer_raw(self, login: Login, message: bytes) -> None:
        """Answer a message of a login that comes as it is, after version 0 of SaslHandshake (KIP-43)."""
        try:
            answer = await login.answer(message, trio.current_time)
        except LoginFailed:
            await trio.sleep(self._node.config.failed_login_delay_ms / 1000)
            return
        if login.is_done:
            client = Client(login.principal, self.peer.host)
            self._node.audit.came_in(client, self.peer.listener, login.mechanism)
        parts: Parts = [len(answer).to_bytes(4, "big") + answer]
        self._queue(_RAW, parts, len(parts[0]))

    def _look_at_login(self, login: Login) -> None:
        """Go on as the login has come out. Raises Refused when it has failed."""
        if login.failure:
            self._node.audit.kept_out(
                self.peer.host, self.peer.listener, login.mechanism, login.claimed, login.failure
            )
            raise Refused(f"the login has failed: {login.failure}")
        if login.is_done:
            if self.peer.client.principal != login.principal:
                self.peer.shows(login.principal)
            self._frames.limit = self._frame_bytes_max
            if math.isinf(login.ends_at):
                self._login = None
        else:
            self._frames.limit = self._node.config.login_bytes_max

    async def _handle_large(
        self, api: Api, header: RequestHeader, frame: memoryview, offset: int
    ) -> None:
        """Decode a request of many rows in turns with other clients, and handle it."""
        rows_max = self._node.config.request_max_rows
        version = header.api_version
        decoding = self._turn.finish(
            decode_in_slices(api.request_class, frame, version, offset, objects_max=rows_max)
        )
        request, _, rows = await (decoding if self._toll is None else self._toll.timed(decoding))
        if self._traced:
            self._trace(header, request)
        unfinished = self._handle(api, header, request, rows)
        if unfinished is not None:
            await unfinished

    def _trace(self, header: RequestHeader, request: Any) -> None:
        """Log a request, for those who want to see all of them."""
        wire_logger.debug("%s > %s %s", self.peer.host, header, request)

    def _handle(
        self, api: Api, header: RequestHeader, request: Any, rows: int
    ) -> Awaitable[None] | None:
        """Do the ordered work of one request, and give its answer a place in the queue.

        Parameters: `rows` is how many array elements the request has.

        Returns None when that is done, as it mostly is, or what is to be awaited for it.
        """
        toll = self._toll
        self._asked[header.api_key] += 1
        if self._activity is not None:
            self._activity.asks(self.peer, header.client_id, header.api_key)
        if toll is None:
            result = api.handler(self._context(header, rows), request)
        else:
            began = trio.current_time()
            result = api.handler(self._context(header, rows), request)
            toll.worked(began)
        if hasattr(result, "__await__"):  # compiled coroutines have types of their own
            work = result if toll is None else toll.timed(result)
            return self._work_and_reply(header, work, rows)
        if rows > SMALL_ROWS:
            return self._reply_slowly(header, result, rows)
        self._reply(header, result, rows)
        return None

    def _context(self, header: RequestHeader, rows: int) -> Context:
        return Context(
            self._node,
            self._apis,
            self.peer,
            header.client_id,
            header.api_key,
            header.api_version,
            self._turn,
            rows,
            self._toll,
        )

    async def _work_and_reply(self, header: RequestHeader, work: Awaitable[Any], rows: int) -> None:
        await self._reply_slowly(header, await work, rows)

    async def _finish(self, work: Awaitable[None]) -> None:
        """Finish what is to be done for a request before the next one is looked at.

        Once it is begun it comes to its end, whether or not anybody waits for the answer; only
        `abort` ends it.
        """
        self._send_or_hand_over()
        await self._shielded(work)
        if self._has_had_its_turn():
            await self._let_others()

    async def _shielded(self, work: Awaitable[None]) -> None:
        # A scope of its own for each request would cost three times as much.
        self._work.shield = True
        try:
            await work
        finally:
            self._work.shield = False

    async def _until_appended(self) -> None:
        """Wait until what was produced before is in place, or its time is over."""
        for reply in [each for asked, each, _, _, _ in self._replies if asked.api_key == _PRODUCE]:
            if isinstance(reply, Pending):
                await reply.until_ready()
        self._appending = False

    @property
    def _owes_too_much(self) -> bool:
        size = self._queued_bytes + sum(map(len, self._unsent))
        return size > self._unsent_bytes_max or len(self._replies) > REPLIES_MAX

    async def _let_others(self) -> None:
        """Let others have their turn, and wait while the client does not take its answers."""
        self._send_or_hand_over()
        await self._shielded(self._turn.next())
        if self._owes_too_much:
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
            except StorageError as error:
                self._cannot_send(error)
            if self._unsent or self._gone or not self._waits_for_first():
                self._wake_writer()

    def _waits_for_first(self) -> bool:
        """Have the first answer sent by whoever gives it; False when the writer has to see to it."""
        if not self._replies:
            self._pause_until(math.inf)
            return True
        first = self._replies[0][1]
        if isinstance(first, Pending) and first.is_given and not first.ready:
            first.on_ready = self._send_first
            self._pause_until(first.deadline)
            self._have_writer()  # it sees to the deadline
            return True
        return False

    def _pause_until(self, deadline: float) -> None:
        # To set it costs twenty times as much.
        if self._pause is not None and self._pause.deadline != deadline:
            self._pause.deadline = deadline

    def _send_first(self) -> None:
        """The first answer is there. Whoever gave it has nothing to do with what fails now."""
        try:
            self._send_or_hand_over()
        except Exception as error:  # noqa: BLE001  # the writer raises it
            self._failure = error
            self._wake_writer()
        self._answers_were_taken()

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
            elif self.rests:
                self._transport.let_go()

    def _finish_reading(self) -> None:
        """Nothing more comes in: answers that are ready still go out, parked ones are dropped."""
        self._reading = False
        if self._has_writer or self.owes_answers:
            self._wake_writer()
        if self._parked:
            self.close()

    def _reply(self, header: RequestHeader, result: Any, rows: int = 0) -> None:
        """Give what came of a request its place in the queue; None is no answer."""
        toll = self._toll
        if toll is not None:
            result = self._settled(toll, result)
        if isinstance(result, (Pending, Waiting)):
            self._queue(header, result, rows * ROW_BYTES)
        elif result is not None and not self._gone:
            parts = self._encode(header, result)
            size = len(parts[0]) if len(parts) == 1 else _size_of(parts)
            self._queued_bytes += size
            self._replies.append((header, parts, size, toll, self._came_at))

    async def _reply_slowly(self, header: RequestHeader, result: Any, rows: int) -> None:
        """As `_reply`, for who may have much to say."""
        toll = self._toll
        if toll is not None:
            result = self._settled(toll, result)
        if self._gone or result is None or isinstance(result, (Pending, Waiting)):
            self._reply(header, result, rows)
        else:
            parts = await self._encode_slowly(header, result, toll)
            self._queue(header, parts, _size_of(parts))

    def _settled(self, toll: Toll, result: Any) -> Any:
        """What came of a request, with what it costs its client; nothing more is handled before.

        Of an answer that is still to be looked for nobody knows that yet.
        """
        if isinstance(result, Waiting) or not toll.settle():
            return result
        if not toll.is_obeyed:
            toll.is_obeyed = True
            self._mute(toll.throttle_ms)
        if result is None or isinstance(result, Pending):
            return result
        return with_throttle_time(result, toll.throttle_ms)

    def _queue(self, header: RequestHeader, reply: Parts | Unencoded, size: int) -> None:
        if self._gone:
            abandon(reply)
            return
        self._queued_bytes += size
        self._replies.append((header, reply, size, self._toll, self._came_at))

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
        self._refusal = str(error)
        level = logging.WARNING if self._node.troubles.is_news(self._refusal) else logging.DEBUG
        logger.log(
            level,
            "closing the connection from %s: %s%s",
            self.peer.host,
            str(error),  # not itself: it knows its frames, and who keeps log records keeps them
            TOO_MANY if isinstance(error, TooManyElements) else self._frames.hint(),
        )

    # -- writer

    async def _write_all(self) -> None:
        try:
            while (self._reading or self.owes_answers) and not (self._gone or self._is_to_rest):
                if self._unsent:
                    await self._transport.writable()
                    self._unsent = self._transport.send_now(self._unsent)
                elif not (self._reading and self._waits_for_first()):
                    await self._resolve_first()
                    self._unsent = self._transport.send_now(self._take_ready())
                else:
                    await self._idle()
                self._answers_were_taken()
        except OSError as error:
            self._peer_has_gone(error)
        except StorageError as error:
            self._cannot_send(error)
        except trio.ClosedResourceError:  # by the reader, which has found nobody there
            self._gone = True
        if not (self._gone or self._is_to_rest):
            self.close()

    async def _idle(self) -> None:
        """Wait for the reader to hand over, at most until the first answer has to be given."""
        self._writer_idle = True
        self._more_replies = trio.Event()
        if self._failure is None:
            with trio.CancelScope() as self._pause:
                self._waits_for_first()
                await self._more_replies.wait()
        self._writer_idle = False
        if self._failure is not None:
            raise self._failure
        first = self._replies[0][1] if self._replies else None
        if isinstance(first, Pending) and first.deadline <= trio.current_time():
            first.expire()

    def _answers_were_taken(self) -> None:
        self.active_at = trio.current_time()
        self._let_reader_go_on()

    def _let_reader_go_on(self) -> None:
        if self._fewer_replies is not None:
            self._fewer_replies.set()

    async def _resolve_first(self) -> None:
        """Wait until the first answer is ready, and encode what takes longer than a turn.

        Raises OSError when nobody is there any more to be answered.
        """
        asked, reply, size, toll, came_at = self._replies[0]
        if isinstance(reply, list) or _is_quick(reply, size):
            await trio.lowlevel.checkpoint()  # who has much to send takes turns with the others
            return
        response = await self._response_of(reply, toll)
        if toll is not None:
            response = self._settled(toll, response)
        if isinstance(reply, Waiting) or _is_long(size):
            parts = await self._encode_slowly(asked, response, toll)
        else:
            parts = self._encode(asked, response)
        if self._gone:
            return  # the reader has found nobody there, and has dropped all answers
        encoded_size = _size_of(parts)
        self._queued_bytes += encoded_size - size
        self._replies[0] = asked, parts, encoded_size, toll, came_at

    async def _response_of(self, reply: Unencoded, toll: Toll | None) -> Any:
        """The response that a reply stands for, when it is there. Raises OSError if none will be."""
        if _is_parked(reply):
            if not self._reading:
                raise OSError("the client closed before its answer was ready")
            self._parked = True
        if isinstance(reply, Pending):
            response = await reply.wait()
        else:
            response = await (reply.begin() if toll is None else toll.timed(reply.begin()))
        # The client may have gone in the same moment; half an answer would be worse than none.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._parked = False
        if response is None:
            raise OSError("the answer was given up")
        return response

    def _take_ready(self) -> Parts:
        """The answers that are ready, in order, up to about `SEND_BYTES`."""
        ready: Parts = []
        taken = count = key = 0
        since = 0.0
        while self._replies and taken < SEND_BYTES:
            asked, reply, size, toll, came_at = self._replies[0]
            taken += size
            if not isinstance(reply, list):
                if not _is_quick(reply, size):
                    break
                if reply.response is None:
                    raise OSError("the answer was given up")
                response = reply.response
                if toll is not None and toll.throttle_ms:
                    response = with_throttle_time(response, toll.throttle_ms)
                reply = self._encode(asked, response)
                taken += _size_of(reply) - size
            self._replies.popleft()
            self._queued_bytes -= size
            ready += reply
            if came_at == since and asked.api_key == key:
                count += 1
            else:
                if count:
                    self._meters.times[key].took(time.perf_counter() - since, count)
                count, key, since = 1, asked.api_key, came_at
        if count:
            self._meters.times[key].took(time.perf_counter() - since, count)
        return ready

    def _encode(self, asked: RequestHeader, response: Any) -> Parts:
        key, version = asked.api_key, asked.api_version
        if key != _PRODUCE:
            self._meters.answers(key, response)
        if self._activity is not None:
            self._activity.answers(self.peer, asked.client_id, key, response)
        if self._traced:
            self._trace_response(asked, response)
        return encode_response(asked.correlation_id, key, version, response)

    async def _encode_slowly(self, asked: RequestHeader, response: Any, toll: Toll | None) -> Parts:
        """As `_encode`, in turns with other clients."""
        key, version = asked.api_key, asked.api_version
        self._meters.answers(key, response)
        if self._activity is not None:
            self._activity.answers(self.peer, asked.client_id, key, response)
        if self._traced:
            self._trace_response(asked, response)
        encoding = self._turn.finish(
            encode_response_in_slices(asked.correlation_id, key, version, response)
        )
        return await (encoding if toll is None else toll.timed(encoding))

    def _trace_response(self, asked: RequestHeader, response: Any) -> None:
        told = response.decoded() if isinstance(response, Encoded) else response
        wire_logger.debug("%s < %d %s", self.peer.host, asked.correlation_id, told)

    def _peer_has_gone(self, error: OSError) -> None:
        """Nobody is there to be answered; what was read is finished all the same."""
        logger.debug("connection from %s ended: %s", self.peer.host, error)
        self._gone = True
        self._abandon_replies()
        self._let_reader_go_on()
        self._transport.close()

    def _cannot_send(self, error: StorageError) -> None:
        """End the connection: the header of an answer is out, and its records cannot be read."""
        if isinstance(error, UnreadableError):
            self._node.partitions.report_unreadable(error)
        logger.warning("closing the connection from %s: %s", self.peer.host, error.message)
        self._peer_has_gone(OSError(error.message))

    def _abandon_replies(self) -> None:
        replies, self._replies = self._replies, deque()
        for _, reply, _, _, _ in replies:
            abandon(reply)
        self._unsent.clear()
        self._queued_bytes = 0


def _is_parked(reply: Parts | Unencoded) -> bool:
    """Whether an answer has to be waited for."""
    return isinstance(reply, Waiting) or (isinstance(reply, Pending) and not reply.ready)


def _is_quick(reply: Unencoded, size: int) -> TypeGuard[Pending[Any]]:
    """Whether an answer that is not encoded yet can go out at once."""
    return not (_is_parked(reply) or _is_long(size))


def _is_long(size: int) -> bool:
    """Whether it takes long to encode an answer."""
    return size > SMALL_ROWS * ROW_BYTES


def _size_of(parts: Parts) -> int:
    return sum(map(len, parts))


def _out_of_place(key: int) -> Any:
    """The answer to a request amidst a login, where it has a place for an error."""
    answer = response_class(key)()
    if hasattr(answer, "error_code"):
        answer.error_code = ErrorCode.ILLEGAL_SASL_STATE
    return answer


def abandon(reply: Any) -> None:
    """Nobody waits for an answer any more."""
    if isinstance(reply, Pending):
        reply.abandon()


def _api_name(key: int) -> str:
    try:
        return f"{ApiKey(key).api_name} ({key})"
    except ValueError:
        return f"API key {key}"
