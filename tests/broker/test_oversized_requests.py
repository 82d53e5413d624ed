"""Tests of requests with arrays of thousands of elements.

Other clients must not wait, and responses must stay small.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.handlers.context import Api, Context
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.transactions import DescribeProducersRequest

from ..brokers import started
from ..loop_latency import longest_step, slowness
from ..wire import connected, request
from .oversized_requests import (
    ITEMS,
    STRETCHES,
    Array,
    Crowd,
    array_paths,
    arrays,
    exchange,
    frame_of,
    make_crowd,
    name_of,
    repeat_shortest_item,
    stretch_request,
    valid_requests,
)

pytestmark = pytest.mark.slow

# Maximum CPU seconds of a step: several time slices, because the machine is shared.
STEP_SECONDS_MAX = 0.04
# Maximum bytes of a response: each existing object once, and a row for each requested item.
ANSWER_BYTES_MAX = 16_000_000
# Items of requests that create an object for each item.
NEW_ITEMS = 1000
ROWS = 1_000_000


def requests(array: Array, crowd: Crowd) -> Iterator[tuple[str, bytes]]:
    """Yield requests with one stretched array and their descriptions."""
    count = NEW_ITEMS if array.api.key.name.startswith("CREATE") else ITEMS
    for message, stretch in zip(
        cycle(valid_requests(array.api.key, crowd)), STRETCHES, strict=False
    ):
        message = stretch_request(message, crowd, array.path, stretch, count)
        yield f"{array}, {stretch.name}", frame_of(array, message)


@contextmanager
def prevent_collections() -> Iterator[None]:
    """Prevent garbage collection of the test's objects within a step of the broker."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def find_problems(
    broker: Broker, crowd: Crowd, apis: Mapping[int, Api], outcomes: Counter[str]
) -> list[str]:
    """Stretch each array of each API. Return the problems."""
    found = []
    with longest_step() as step, prevent_collections():
        for array in arrays(apis):
            gc.collect()
            for label, frame in requests(array, crowd):
                step.seconds = 0
                how, size = await exchange(broker.node, apis, frame)
                outcomes[how] += 1
                if step.seconds > STEP_SECONDS_MAX:
                    found.append(f"{label}: {step}")
                if how == "no response" or size > ANSWER_BYTES_MAX:
                    found.append(f"{label}: {how}, {size} bytes")
            async with connected(broker.endpoint) as bystander:
                assert await bystander.works()
    return found


@pytest.mark.long
async def test_oversized_arrays_do_not_block_other_clients() -> None:
    outcomes: Counter[str] = Counter()
    async with started() as broker:
        crowd = await make_crowd(broker)
        found = await find_problems(broker, crowd, load_apis(), outcomes)
    print(f"\n{len(arrays(load_apis()))} arrays: {dict(outcomes)}")
    assert not found, "\n".join(found)
    assert outcomes["answered"] > 0.9 * outcomes.total()


async def test_request_with_million_rows_closes_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One log line names the setting."""
    apis = load_apis()
    caplog.set_level(logging.DEBUG, logger="kbroker.net.connection")
    async with started() as broker:
        crowd = await make_crowd(broker, partitions=1, many=1)
        with longest_step() as step, prevent_collections():
            for array in arrays(apis):
                gc.collect()
                caplog.clear()
                outcome = await exchange(
                    broker.node, apis, repeat_shortest_item(array, crowd, ROWS)
                )
                assert outcome.how == "closed", array
                lines = [each.getMessage() for each in caplog.records]
                closing = [line for line in lines if line.startswith("closing the connection")]
                assert len(closing) == 1, (array, lines)
                assert "(request.max.elements)" in closing[0] or "larger than" in closing[0], (
                    closing
                )
    assert step.seconds < STEP_SECONDS_MAX, step


async def test_end_of_transaction_in_many_partitions_does_not_block() -> None:
    async with started() as broker:
        crowd = await make_crowd(broker)
        async with connected(broker.endpoint) as wire:
            message = request(
                ApiKey.END_TXN,
                transactional_id=crowd.transactional_ids[-1],
                producer_id=crowd.producer_id,
                producer_epoch=0,
                committed=True,
            )
            with longest_step() as step, prevent_collections():
                response = await wire.ask(ApiKey.END_TXN, 3, message)
            assert response.error_code == 0
    assert step.seconds < STEP_SECONDS_MAX, step


# -- tests of the test harness


def test_all_arrays_of_all_apis_are_found() -> None:
    paths = {name_of(path) for path in array_paths(DescribeProducersRequest)}
    assert paths == {"topics", "topics.partition_indexes"}
    found = Counter(array.api.key for array in arrays(load_apis()))
    assert found[ApiKey.FETCH] == 4
    assert len(found) > 30


async def test_blocking_handler_is_detected() -> None:
    """A handler that processes all rows at once, and one whose response multiplies them."""
    apis = load_apis()
    too_long = 3 * slowness() * STEP_SECONDS_MAX

    def describe_slowly(ctx: Context, message: Any) -> Any:
        began = time.thread_time()
        if len(message.transactional_ids) > 1000:
            while time.thread_time() - began < too_long:
                pass
        return apis[ApiKey.DESCRIBE_TRANSACTIONS].handler(ctx, message)

    async def multiplying(ctx: Context, message: Any) -> Any:
        work: Any = apis[ApiKey.DESCRIBE_PRODUCERS].handler(ctx, message)
        response = await work
        for topic in response.topics:
            for row in topic.partitions:
                row.active_producers *= max(len(message.topics), 1)
        return response

    planted: dict[int, Api] = {
        key: apis[key]._replace(handler=handler)
        for key, handler in (
            (ApiKey.DESCRIBE_TRANSACTIONS, describe_slowly),
            (ApiKey.DESCRIBE_PRODUCERS, multiplying),
            (ApiKey.API_VERSIONS, apis[ApiKey.API_VERSIONS].handler),
        )
    }
    async with started() as broker:
        crowd = await make_crowd(broker, partitions=1)
        found = await find_problems(broker, crowd, planted, Counter())
    assert any("DESCRIBE_TRANSACTIONS" in each and "at a stretch" in each for each in found)
    assert any("DESCRIBE_PRODUCERS" in each and "bytes" in each for each in found)
