"""Faults, clocks and waits for programs in other languages: JSON lines over a socket.

One line is one order, an object with its verb in `do`; one line is its answer, an object with `ok`,
and with `error` when that is false. An order that waits is answered when the wait is over; orders
of one connection are done in turn.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.errors import ClientError
from kbroker.context import Endpoint
from kbroker.protocol.errors import KafkaError

from .async_broker import RunningBroker
from .clock import MovableClock, milliseconds
from .fault import check_faults, new_rule
from .faulty_connection import FaultyConnection
from .kit import CLIENT_ID, WAIT_SECONDS
from .log_tail import LogTail
from .names import api_key
from .rules import Effect, Faults, Rule

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 4096
SCHEDULE = {"effect", "ms", "bit", "on_call", "times", "every_time", "probability", "seed", "maybe"}
"""Words of a fault that say how and when; all others say what it is for."""

Order = dict[str, Any]


class Control:
    """Carries out orders on a broker. Faults have the numbers in which they were armed."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._rules: dict[int, Rule] = {}
        self._verbs: dict[str, Callable[..., Awaitable[Order]]] = {
            "fault": self._fault,
            "hits": self._hits,
            "disarm": self._disarm,
            "check": self._check,
            "advance": self._advance,
            "settled": self._settled,
            "wait_for_group": self._wait_for_group,
            "wait_for_lag": self._wait_for_lag,
            "wait_for_request": self._wait_for_request,
            "explain": self._explain,
            "report": self._report,
        }

    async def carry_out(self, line: bytes) -> Order:
        """Do what one line says; the answer, also when it makes no sense."""
        try:
            order = json.loads(line)
            if not isinstance(order, dict):
                raise TypeError("an order is a JSON object")
            verb = self._verbs.get(str(order.pop("do", None)))
            if verb is None:
                raise ValueError(f"`do` is one of {', '.join(sorted(self._verbs))}")
            return {"ok": True, **await verb(**order)}
        except (ValueError, TypeError, AssertionError, KafkaError, ClientError) as error:
            return {"ok": False, "error": str(error)}

    async def _fault(self, api: str | None = None, **words: Any) -> Order:
        schedule = {name: words.pop(name) for name in SCHEDULE & words.keys()}
        if isinstance(words.get("versions"), list):
            first, last = words["versions"]
            words["versions"] = range(first, last + 1)
        rule = new_rule(api, **words)
        _schedule(rule, **schedule)
        number = len(self._rules) + 1
        self._rules[number] = rule
        self._broker.faults.arm(rule)
        return {"fault": number}

    def _rule(self, number: int) -> Rule:
        if number not in self._rules:
            raise ValueError(f"there is no fault {number}")
        return self._rules[number]

    async def _hits(self, fault: int, wait: int = 0, timeout: float = WAIT_SECONDS) -> Order:
        rule = self._rule(fault)
        if wait:
            await self._broker.wait_for_hits(rule, wait, timeout)
        return {"hits": rule.hits}

    async def _disarm(self, fault: int) -> Order:
        self._broker.faults.disarm(self._rule(fault))
        return {}

    async def _check(self) -> Order:
        check_faults(self._broker.faults)
        return {}

    async def _advance(
        self,
        clock: str = "log",
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        keep_members: bool = False,
    ) -> Order:
        span_ms = milliseconds(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if clock == "log":
            await self._broker.advance(span_ms)
        elif clock == "coordinator":
            await self._broker.advance_coordinator(span_ms, keep_members=keep_members)
        else:
            raise ValueError(f"clock is log or coordinator, not {clock!r}")
        return {}

    async def _settled(self, group: str | None = None, timeout: float = WAIT_SECONDS) -> Order:
        await self._broker.settled(group, timeout)
        return {}

    async def _wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Order:
        found = await self._broker.wait_for_group(group, members, state, timeout)
        return {"state": found.state, "members": [member.id for member in found.members]}

    async def _wait_for_lag(self, group: str, lag: int = 0, timeout: float = WAIT_SECONDS) -> Order:
        await self._broker.wait_for_lag(group, lag, timeout)
        return {}

    async def _wait_for_request(
        self,
        api: str,
        client_id: str | None = None,
        count: int = 1,
        timeout: float = WAIT_SECONDS,
    ) -> Order:
        await self._broker.wait_for_request(api_key(api), client_id, count, timeout)
        return {}

    async def _explain(
        self, group: str | None = None, topic: str | None = None, partition: int = 0
    ) -> Order:
        if (group is None) == (topic is None):
            raise ValueError("explain takes a group, or a topic and a partition")
        explain = self._broker.explain
        found = explain.partition(topic, partition) if topic is not None else None
        return {"text": str(found or explain.group(str(group)))}

    async def _report(self) -> Order:
        return {"report": await self._broker.report()}


def _schedule(
    rule: Rule,
    *,
    effect: str | None = None,
    ms: float = 0,
    bit: int = 0,
    on_call: int = 1,
    times: int = 1,
    every_time: bool = False,
    probability: float | None = None,
    seed: int = 0,
    maybe: bool = False,
) -> None:
    """Say of a rule what it does and when. Raises ValueError."""
    if effect is not None:
        known = [each.value for each in Effect if each is not Effect.HOOK]
        if effect not in known:
            raise ValueError(f"effect is one of {', '.join(known)}, not {effect!r}")
        rule.effect = Effect(effect)
    rule.milliseconds, rule.bit, rule.first = ms, bit, on_call
    rule.count = math.inf if every_time or probability is not None else times
    rule.may_stay_unfired = maybe or probability is not None
    if probability is not None:
        rule.probability, rule.random = probability, random.Random(seed)


@contextlib.asynccontextmanager
async def controlled(
    opened: Callable[..., AbstractAsyncContextManager[Broker]], port: int
) -> AsyncIterator[tuple[Broker, Endpoint]]:
    """Open a broker, and take orders for it on a port of 127.0.0.1 (0: a free one).

    Parameters: `opened` is `open_broker` with all but its clock and connections. Yields the broker
    and the address for orders. Raises OSError when the port is taken.
    """
    faults, clock = Faults(), MovableClock()
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    async with (
        opened(clock=clock, connection_class=partial(FaultyConnection, faults)) as broker,
        open_cluster([broker.endpoint], CLIENT_ID) as cluster,
        trio.open_nursery() as nursery,
    ):
        control = Control(RunningBroker(broker, cluster, faults, clock, LogTail()))

        async def serve(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                async for line in _lines(stream):
                    answer = json.dumps(await control.carry_out(line))
                    await stream.send_all(answer.encode() + b"\n")

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield broker, Endpoint(*listeners[0].socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


async def _lines(stream: trio.SocketStream) -> AsyncIterator[bytes]:
    buffer = bytearray()
    while len(buffer) <= LINE_BYTES_MAX:
        end = buffer.find(b"\n")
        if end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            yield line
            continue
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            return
        buffer += data
    logger.warning("an order of more than %d bytes: closing the connection", LINE_BYTES_MAX)
