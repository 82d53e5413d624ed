"""A connection's request and response stages without a socket and tasks."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.handlers.context import Api, Context, Handler, Peer
from kbroker.handlers.registry import load_apis
from kbroker.net.replies import Parts, Replies
from kbroker.net.requests import Requests
from kbroker.node.request_memory import Claim
from kbroker.partitions.waiters import Outcome
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import Message
from kbroker.runtime.time_slices import TimeSlice

from ..brokers import started

# Returns the outcome of the request with the given number (from 1).
Result = Callable[[int], Outcome[Message]]


class Ends(NamedTuple):
    """The request stage and the response stage of a connection."""

    requests: Requests
    replies: Replies


@asynccontextmanager
async def connection_of(results: Mapping[ApiKey, Result]) -> AsyncIterator[Ends]:
    """Serve the APIs of `results` with planted outcomes and the others as the broker does."""
    async with started() as broker:
        node = broker.node
        peer = Peer("127.0.0.1", Endpoint("127.0.0.1", 9092), "PLAINTEXT", None)
        time_slice = TimeSlice(node.context.fair_queue)
        replies = Replies(node, peer, time_slice, trio.current_time)
        apis: dict[int, Api] = dict(load_apis())
        for key, result in results.items():
            apis[key] = apis[key]._replace(handler=_counting(result))
        claim = Claim(node.limits.memory, peer.host, lambda: None)
        requests = Requests(
            node,
            apis,
            peer,
            replies,
            time_slice,
            claim,
            frame_bytes_max=1 << 20,
            now=trio.current_time,
        )
        yield Ends(requests, replies)
        replies.abandon()


def _counting(result: Result) -> Handler:
    count = 0

    def handle(ctx: Context, request: Message) -> Outcome[Message]:
        nonlocal count
        count += 1
        return result(count)

    return cast(Handler, handle)


def correlation_ids(parts: Parts) -> list[int]:
    """Return the correlation IDs of whole responses, in order."""
    data = b"".join(cast("list[bytes]", parts))
    found = []
    while data:
        size, correlation_id = struct.unpack_from(">ii", data)
        assert 4 + size <= len(data)
        found.append(correlation_id)
        data = data[4 + size :]
    return found
