from __future__ import annotations

import pytest
import trio

from kbroker.handlers.context import DisconnectError
from kbroker.net.requests import DECODED_AT_ONCE, SMALL_BYTES, Requests
from kbroker.partitions.waiters import Pending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import DecodeError
from kbroker.protocol.framing import FrameError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.schema import Message, as_message

from ..wire import frame
from .sans_io import Result, connection_of, correlation_ids


def heartbeat(number: int) -> bytes:
    return frame(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g"), "test", number)


def produce(number: int) -> bytes:
    return frame(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1), "test", number)


def beat(_: int) -> Message:
    return as_message(HeartbeatResponse())


def feed(requests: Requests, data: bytes) -> None:
    requests.begin(trio.current_time())
    requests.frames.feed(data)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_requests_in_chunks_of_any_size_get_replies_in_order(size: int) -> None:
    data = b"".join(map(heartbeat, range(3)))
    async with connection_of({ApiKey.HEARTBEAT: beat}) as (requests, replies):
        taken: list[int] = []
        for at in range(0, len(data), size):
            feed(requests, data[at : at + size])
            assert requests.handle_some() is None
            taken += correlation_ids(replies.take_ready())
        assert taken == [0, 1, 2]
        assert requests.count == 3


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n", FrameError),
        (b"\0\0\0\0", FrameError),
        (b"\0\0\0\2\0\0", DecodeError),
        (frame(ApiKey.HEARTBEAT, 4, HeartbeatRequest(), "test", 1)[:-1], None),
        (frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), "test", 1)[:4] + b"\0\x10\x7f\0", None),
    ],
)
async def test_malformed_or_incomplete_bytes_raise_or_wait(
    data: bytes, error: type[Exception] | None
) -> None:
    async with connection_of({}) as (requests, replies):
        feed(requests, data)
        if error is None:
            assert requests.handle_some() is None
        else:
            with pytest.raises(error):
                requests.handle_some()
        assert replies.take_ready() == []


@pytest.mark.parametrize(
    ("elements", "is_at_once"), [(DECODED_AT_ONCE, True), (DECODED_AT_ONCE + 1, False)]
)
async def test_small_request_with_many_elements_is_decoded_in_slices(
    elements: int, is_at_once: bool
) -> None:
    data = frame(
        ApiKey.LIST_GROUPS, 5, ListGroupsRequest(states_filter=["x"] * elements), "test", 1
    )
    assert len(data) < SMALL_BYTES
    handlers = {ApiKey.LIST_GROUPS: lambda _: as_message(ListGroupsResponse())}
    async with connection_of(handlers) as (requests, replies):
        feed(requests, data)
        unfinished = requests.handle_some()
        assert (unfinished is None) == is_at_once
        if unfinished is not None:
            await unfinished
        assert correlation_ids(replies.take_ready()) == [1]


async def test_unknown_version_of_api_versions_gets_version_0_response() -> None:
    async with connection_of({}) as (requests, replies):
        request = frame(ApiKey.API_VERSIONS, 4, ApiVersionsRequest(), "test", 7)
        feed(requests, request[:6] + b"\0\x7f" + request[8:])
        assert requests.handle_some() is None
        assert correlation_ids(replies.take_ready()) == [7]


async def test_unknown_version_of_other_api_closes_connection() -> None:
    async with connection_of({ApiKey.HEARTBEAT: beat}) as (requests, replies):
        bad = heartbeat(2)
        feed(requests, heartbeat(1) + bad[:6] + b"\0\x7f" + bad[8:])
        with pytest.raises(DisconnectError, match=r"Heartbeat \(12\) version 127"):
            requests.handle_some()
        assert correlation_ids(replies.take_ready()) == [1]


async def test_produce_requests_are_handled_before_the_first_is_appended() -> None:
    pending = [Pending[Message](), Pending[Message]()]
    async with connection_of({ApiKey.PRODUCE: lambda n: pending[n - 1]}) as (requests, replies):
        feed(requests, produce(1) + produce(2))
        assert requests.handle_some() is None
        assert replies.pending_produces() == pending
        pending[1].resolve(as_message(ProduceResponse()))
        assert replies.take_ready() == []
        pending[0].resolve(as_message(ProduceResponse()))
        assert correlation_ids(replies.take_ready()) == [1, 2]


async def test_other_request_waits_until_records_before_it_are_appended() -> None:
    pending = Pending[Message]()
    beats: list[int] = []

    def count(number: int) -> Message:
        beats.append(number)
        return beat(number)

    results: dict[ApiKey, Result] = {ApiKey.PRODUCE: lambda _: pending, ApiKey.HEARTBEAT: count}
    async with connection_of(results) as (requests, replies), trio.open_nursery() as nursery:
        feed(requests, produce(1) + heartbeat(2))
        work = requests.handle_some()
        assert work is not None

        async def finish() -> None:
            await work

        nursery.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        assert beats == []
        pending.resolve(as_message(ProduceResponse()))
        await trio.testing.wait_all_tasks_blocked()
        assert beats == [1]
        assert correlation_ids(replies.take_ready()) == [1, 2]


async def test_read_only_request_is_skipped_for_closed_client() -> None:
    beats: list[int] = []

    def count(number: int) -> Message:
        beats.append(number)
        return beat(number)

    results = {ApiKey.HEARTBEAT: count, ApiKey.LIST_GROUPS: count}
    async with connection_of(results) as (requests, replies):
        replies.abandon()
        listing = frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), "test", 1)
        feed(requests, listing + heartbeat(2))
        assert requests.handle_some() is None
        assert requests.count == 2
        assert beats == [1]


async def test_throttled_connection_leaves_complete_requests_unhandled() -> None:
    async with connection_of({ApiKey.HEARTBEAT: beat}) as (requests, replies):
        feed(requests, heartbeat(1) + heartbeat(2))
        replies.throttled_until = 10.0
        assert requests.is_throttled
        assert requests.handle_some() is None
        assert correlation_ids(replies.take_ready()) == [1]
        replies.throttled_until = None
        assert requests.handle_some() is None
        assert correlation_ids(replies.take_ready()) == [2]


async def test_aborted_connection_handles_no_more_requests() -> None:
    async with connection_of({ApiKey.HEARTBEAT: beat}) as (requests, replies):
        feed(requests, heartbeat(1) + heartbeat(2))
        requests.is_aborted = True
        assert requests.handle_some() is None
        assert correlation_ids(replies.take_ready()) == [1]
