from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import trio

from kbroker.net.replies import REPLIES_MAX, SMALL_ROWS, Replies
from kbroker.partitions.waiters import Outcome, Pending, Waiting
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.groups import HeartbeatResponse
from kbroker.protocol.schema import Message, as_message

from .sans_io import connection_of, correlation_ids

READY, PENDING, WAITING, NONE = "ready", "pending", "waiting", "none"


def header(number: int, key: ApiKey = ApiKey.HEARTBEAT) -> RequestHeader:
    return RequestHeader(key, 4, number, "test")


def response() -> Message:
    return as_message(HeartbeatResponse())


async def begin() -> Message:
    return response()


def outcome_of(kind: str) -> Outcome[Message]:
    if kind == PENDING:
        return Pending[Message]()
    if kind == WAITING:
        return Waiting(begin)
    return response() if kind == READY else None


def add_all(replies: Replies, kinds: Sequence[str]) -> list[Outcome[Message]]:
    outcomes = [outcome_of(kind) for kind in kinds]
    for number, outcome in enumerate(outcomes):
        replies.add(header(number), outcome, None, 0.0)
    return outcomes


@pytest.mark.parametrize(
    ("kinds", "resolved", "ready"),
    [
        ([], [], []),
        ([READY], [], [0]),
        ([READY, READY, READY], [], [0, 1, 2]),
        ([NONE, READY], [], [1]),
        ([PENDING, READY], [], []),
        ([PENDING, READY], [0], [0, 1]),
        ([READY, PENDING, READY], [], [0]),
        ([PENDING, PENDING], [1], []),
        ([PENDING, PENDING, READY], [1, 0], [0, 1, 2]),
        ([WAITING, READY], [], []),
        ([READY, WAITING, READY], [], [0]),
    ],
)
async def test_ready_replies_are_taken_in_request_order(
    kinds: list[str], resolved: list[int], ready: list[int]
) -> None:
    async with connection_of({}) as (_, replies):
        outcomes = add_all(replies, kinds)
        for number in resolved:
            pending = outcomes[number]
            assert isinstance(pending, Pending)
            pending.resolve(response())
        assert correlation_ids(replies.take_ready()) == ready


@pytest.mark.parametrize("kind", [PENDING, WAITING])
async def test_resolved_first_reply_is_taken_with_those_after_it(kind: str) -> None:
    async with connection_of({}) as (_, replies):
        add_all(replies, [kind, READY])
        await replies.resolve(replies.queue[0], response())
        assert replies.is_first_ready
        assert correlation_ids(replies.take_ready()) == [0, 1]
        assert not replies.queue
        assert replies.owed_bytes == 0


@pytest.mark.parametrize(
    ("kinds", "is_notified", "deadline"),
    [
        ([], False, math.inf),
        ([PENDING], True, math.inf),
        ([PENDING, READY], True, math.inf),
        ([READY], False, None),
        ([WAITING, PENDING], False, None),
    ],
)
async def test_first_pending_reply_notifies_when_resolved(
    kinds: list[str], is_notified: bool, deadline: float | None
) -> None:
    async with connection_of({}) as (_, replies):
        outcomes = add_all(replies, kinds)
        notified: list[bool] = []
        assert replies.notify_first_ready(lambda: notified.append(True)) == deadline
        for outcome in outcomes:
            if isinstance(outcome, Pending):
                outcome.resolve(response())
        assert bool(notified) is is_notified


async def test_first_reply_expires_at_its_deadline() -> None:
    async with connection_of({}) as (_, replies):
        pending = Pending(deadline=5.0, on_timeout=response)
        replies.add(header(0), pending, None, 0.0)
        replies.expire_first(4.9)
        assert replies.take_ready() == []
        replies.expire_first(5.0)
        assert correlation_ids(replies.take_ready()) == [0]


async def test_sizes_count_what_is_queued_and_unsent() -> None:
    async with connection_of({}) as (_, replies):
        add_all(replies, [READY, READY])
        owed = replies.owed_bytes
        replies.unsent = replies.take_ready()
        assert replies.owed_bytes == owed == sum(map(len, replies.unsent))
        replies.unsent = []
        assert replies.owed_bytes == 0


async def test_queue_is_full_above_count_and_byte_limits() -> None:
    async with connection_of({}) as (_, replies):
        add_all(replies, [PENDING] * REPLIES_MAX)
        assert not replies.is_full
        add_all(replies, [PENDING])
        assert replies.is_full
        replies.abandon()
        assert not replies.is_full
    async with connection_of({}) as (_, replies):
        replies.add(header(0), Pending[Message](), None, 0.0, rows=100_000)
        assert replies.is_full


async def test_abandoned_replies_resolve_and_later_ones_are_dropped() -> None:
    async with connection_of({}) as (_, replies):
        (pending,) = add_all(replies, [PENDING])
        replies.abandon()
        assert isinstance(pending, Pending)
        assert pending.ready
        late = Pending[Message]()
        replies.add(header(1), late, None, 0.0)
        assert late.ready
        replies.add(header(2), response(), None, 0.0)
        assert replies.take_ready() == []


async def test_given_up_reply_raises_os_error() -> None:
    async with connection_of({}) as (_, replies):
        (pending,) = add_all(replies, [PENDING])
        assert isinstance(pending, Pending)
        pending.resolve(None)
        with pytest.raises(OSError, match="dropped"):
            replies.take_ready()


async def test_long_response_is_encoded_in_slices_by_resolve() -> None:
    async with connection_of({}) as (_, replies):
        pending = Pending[Message]()
        replies.add(header(0), pending, None, 0.0, rows=SMALL_ROWS + 1)
        pending.resolve(response())
        assert not replies.is_first_ready
        await replies.resolve(replies.queue[0], response())
        assert correlation_ids(replies.take_ready()) == [0]


async def test_appends_lists_pending_produce_replies() -> None:
    async with connection_of({}) as (_, replies):
        first, second = Pending[Message](), Pending[Message]()
        replies.add(header(0, ApiKey.PRODUCE), first, None, 0.0)
        replies.add(header(1), second, None, 0.0)
        assert replies.pending_produces() == [first]


async def test_pending_long_poll_does_not_count_as_work() -> None:
    async with connection_of({}) as (_, replies):
        replies.add(header(0, ApiKey.FETCH), Waiting(trio.sleep_forever), None, 0.0)
        assert not replies.has_work
        add_all(replies, [PENDING])
        assert replies.has_work


async def test_end_after_first_keeps_one_reply_and_then_fails() -> None:
    async with connection_of({}) as (_, replies):
        add_all(replies, [READY, PENDING, READY])
        replies.end_after_first(OSError("cut"))
        assert correlation_ids(replies.take_ready()) == [0]
        _, reply, _, _, _ = replies.queue[0]
        assert isinstance(reply, Waiting)
        with pytest.raises(OSError, match="cut"):
            await reply.begin()
