"""A connection on which armed faults hit requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple

import trio

from kbroker.connection import Connection, Reply
from kbroker.context import Context, Refused
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.records import HEADER_SIZE
from kbroker.protocol.schema import Struct, fields
from kbroker.registry import Api
from kbroker.waiters import Pending, Preparation

from .error_answers import error_answer
from .kit import CLIENT_ID
from .rules import (
    Asked,
    Effect,
    Faults,
    Rule,
    asked_of,
    partition_of,
    partition_rows,
    topic_of,
    topic_rows,
)


class Mangled(NamedTuple):
    """An answer that does not go out as it should."""

    response: Any
    effect: Effect


class Asking(NamedTuple):
    """One request, and what serves it."""

    api: Api
    header: RequestHeader
    request: Any


class FaultyConnection(Connection):
    """Asks `faults` what to do with each request.

    A request that is delayed holds up what its client sends after it, as a slow network would: work
    is done in the order of arrival.
    """

    def __init__(self, faults: Faults, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._faults = faults

    # -- requests

    async def _handle(self, api: Api, header: RequestHeader, request: Any) -> None:
        if header.client_id == CLIENT_ID:
            await self._serve_plainly(api, header, request)
            return
        if api.key == ApiKey.FETCH and self._names_too_little(request):
            self._reply(header, FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        asked = asked_of(
            api.key, header.api_version, header.client_id, request, self._name_of_topic
        )
        rule = self._faults.take(asked)
        if rule is None:
            await self._serve_plainly(api, header, request)
        elif rule.effect is Effect.DELAY and not rule.after:
            await self._prepare(Preparation(partial(trio.sleep, rule.milliseconds / 1000)))
            await self._serve_plainly(api, header, request)
        else:
            await self._hit(rule, asked, Asking(api, header, request))

    async def _serve_plainly(self, api: Api, header: RequestHeader, request: Any) -> None:
        unfinished = super()._handle(api, header, request)
        if unfinished is not None:
            await unfinished

    async def _ordered_work(self, api: Api, header: RequestHeader, request: Any) -> Any:
        """Call the handler; what it returns is the answer, or stands for it."""
        context = Context(self._node, self._apis, self.peer, header.client_id, header.api_version)
        result = api.handler(context, request)
        return await self._prepare(result) if isinstance(result, Preparation) else result

    def _names_too_little(self, request: FetchRequest) -> bool:
        """A fetch of a session does not name its partitions (KIP-227), and a rule has to know them.

        A session that is not found any more makes the client name all of them.
        """
        return request.session_epoch > 0 and self._faults.must_know_partitions()

    def _name_of_topic(self, topic_id: Any) -> str:
        topic = self._node.cluster.topics_by_id.get(topic_id)
        return topic.name if topic else ""

    async def _hit(self, rule: Rule, asked: Asked, asking: Asking) -> None:
        """Carry out a rule on one request."""
        effect, (api, header, request) = rule.effect, asking
        if effect is Effect.HOOK:
            self._reply(header, self._ask_hook(rule, asked, asking))
        elif effect is Effect.ERROR and not rule.after:
            await self._refuse(rule, asking)
        elif effect is Effect.CORRUPT_BATCH and api.key == ApiKey.PRODUCE:
            self._change_rows(rule, request, _flip)
            await self._serve_plainly(api, header, request)
        elif effect is Effect.DISCONNECT and not rule.after:
            raise Refused(f"fault: {rule}")
        elif effect is Effect.BLACKHOLE and not rule.after:
            self._reply(header, _never())
        else:
            await self._answer(rule, asking)

    async def _refuse(self, rule: Rule, asking: Asking) -> None:
        """Answer with the error; rows of other topics and partitions are served as they should be."""
        api, header, request = asking
        kept, refused = self._split(rule, request)
        if kept is None:
            self._reply(header, error_answer(api.key, request, rule.code))
            return
        result = await self._ordered_work(api, header, kept)
        refusal = error_answer(api.key, refused, rule.code)
        self._reply(header, _then(result, lambda response: _joined(response, refusal)))

    def _split(self, rule: Rule, request: Any) -> tuple[Any | None, Any]:
        """What of the request the rule leaves alone (None: nothing), and what it refuses."""
        kept, refused = [], []
        name = next((each.name for each in fields(type(request)) if _is_topics(each.name)), None)
        for row in topic_rows(request):
            inside, outside = self._split_topic(rule, row)
            refused += inside
            kept += outside
        if name is None or not kept:
            return None, request
        return _with(request, name, kept), _with(request, name, refused)

    def _split_topic(self, rule: Rule, row: Any) -> tuple[list[Any], list[Any]]:
        topic = topic_of(row, self._name_of_topic)
        if not rule.target.covers(topic, None):
            return [], [row]
        partitions = partition_rows(row)
        inside = [each for each in partitions if rule.target.covers(topic, partition_of(each))]
        if len(inside) == len(partitions):
            return [row], []
        outside = [each for each in partitions if each not in inside]
        name = next(each.name for each in fields(type(row)) if each.name.startswith("partition"))
        return [_with(row, name, inside)], [_with(row, name, outside)]

    async def _ask_hook(self, rule: Rule, asked: Asked, asking: Asking) -> Any:
        assert rule.hook is not None
        answer = rule.hook(asking.request, asked)
        if isinstance(answer, CoroutineType):
            answer = await answer
        if answer is not None:
            return answer
        return await _resolve(await self._ordered_work(*asking))

    # -- answers

    async def _answer(self, rule: Rule, asking: Asking) -> None:
        """Do the work, then lie about it."""
        result = await self._ordered_work(*asking)
        if result is not None:
            self._reply(asking.header, _then(result, lambda response: self._lie(rule, response)))

    async def _lie(self, rule: Rule, response: Any) -> Any:
        effect = rule.effect
        if effect is Effect.DISCONNECT:
            raise OSError(f"fault: {rule}")
        if effect is Effect.BLACKHOLE:
            await trio.sleep_forever()
        elif effect is Effect.DELAY:
            await trio.sleep(rule.milliseconds / 1000)
        elif effect is Effect.THROTTLE:
            response.throttle_time_ms = int(rule.milliseconds)
        elif effect is Effect.ERROR:
            _set_errors(response, rule.code, self._rows(rule, response))
        elif effect is Effect.CORRUPT_BATCH:
            self._change_rows(rule, response, _flip)
        elif effect in (Effect.HALF_FRAME, Effect.ANSWER_TWICE):
            return Mangled(response, effect)
        return response

    def _rows(self, rule: Rule, message: Any) -> list[Any]:
        """The rows about partitions that a rule is about."""
        return [
            row
            for topic in topic_rows(message)
            for row in partition_rows(topic)
            if rule.target.covers(topic_of(topic, self._name_of_topic), partition_of(row))
        ]

    def _change_rows(self, rule: Rule, message: Any, change: Callable[[Rule, Any], None]) -> None:
        for row in self._rows(rule, message):
            change(rule, row)

    def _encode(self, reply: Reply, response: Any) -> list[Any]:
        if not isinstance(response, Mangled):
            return super()._encode(reply, response)
        parts = super()._encode(reply, response.response)
        if response.effect is Effect.ANSWER_TWICE:
            return parts + super()._encode(reply, response.response)
        self._replies.clear()
        self._finish_reading()
        return _half(parts)


async def _never() -> None:
    await trio.sleep_forever()


async def _resolve(result: Any) -> Any:
    """The response that a handler's result stands for."""
    if isinstance(result, Pending):
        return await result.wait()
    return await result if isinstance(result, CoroutineType) else result


async def _then(result: Any, change: Callable[[Any], Any]) -> Any:
    """The response, changed."""
    response = await _resolve(result)
    if response is None:
        return None
    changed = change(response)
    return await changed if isinstance(changed, CoroutineType) else changed


def _is_topics(name: str) -> bool:
    return name in ("topics", "topic_data")


def _with(message: Any, name: str, value: Any) -> Any:
    """A copy of a message with one field changed."""
    values = {each.name: getattr(message, each.name) for each in fields(type(message))}
    return type(message)(**{**values, name: value})


def _joined(response: Any, refusal: Any) -> Any:
    """One response of two that are about different rows."""
    for field in fields(type(response)):
        if field.array and isinstance(field.kind, type):
            setattr(
                response, field.name, getattr(response, field.name) + getattr(refusal, field.name)
            )
    return response


def _set_errors(response: Any, code: ErrorCode, rows: list[Any]) -> None:
    """Put the error into these rows, or into all places when there are none."""
    if not rows:
        rows = [response, *_structs(response)]
    for row in rows:
        if hasattr(row, "error_code"):
            row.error_code = code


def _structs(message: Struct) -> list[Any]:
    found: list[Any] = []
    for field in fields(type(message)):
        if field.array and isinstance(field.kind, type):
            for row in getattr(message, field.name) or ():
                found += [row, *_structs(row)]
    return found


def _flip(rule: Rule, row: Any) -> None:
    """Change one bit of the first batch of a row, behind its header."""
    records = getattr(row, "records", None)
    if not records:
        return
    data = bytearray(records if isinstance(records, (bytes, memoryview)) else records.read())
    position = HEADER_SIZE + rule.bit // 8
    if position < len(data):
        data[position] ^= 1 << rule.bit % 8
    row.records = memoryview(data)


def _half(parts: list[Any]) -> list[Any]:
    data = b"".join(
        bytes(part if isinstance(part, (bytes, memoryview, bytearray)) else part.read())
        for part in parts
    )
    return [data[: len(data) // 2]]
