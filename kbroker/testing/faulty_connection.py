"""A connection on which armed faults hit requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

import trio

from kbroker.cluster.peers import client_id_of
from kbroker.handlers.context import Refused
from kbroker.handlers.registry import Api
from kbroker.net.connection import Connection, Parts, abandon
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.records import HEADER_SIZE
from kbroker.schemas import CLIENT_ID as REGISTRY_CLIENT_ID

from .error_answers import error_answer
from .kit import CLIENT_ID
from .rows import covered_rows, joined, set_errors, split
from .rules import Asked, Faults, Rule, asked_of
from .schedule import Effect


class Mangled(NamedTuple):
    """An answer that does not go out as it should."""

    response: Any
    effect: Effect


class Asking(NamedTuple):
    """One request with its number of array elements, what is asked with it, and what serves it."""

    api: Api
    header: RequestHeader
    request: Any
    rows: int
    asked: Asked


class FaultyConnection(Connection):
    """Asks `faults` what to do with each request.

    A request that is delayed, or that a hook thinks about, holds up what its client sends after it,
    as a slow network would: work is done in the order of arrival.
    """

    def __init__(self, faults: Faults, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._faults = faults
        self._is_known = False
        self.is_of_kit = False
        """The test itself asks."""
        self.is_spared = False
        """The test itself, its schema registry or another node asks, and no fault hits it."""

    # -- who asks

    def _get_to_know(self, header: RequestHeader) -> None:
        """The first request says whose connection it is, and so what it may know of."""
        if not self._is_known:
            self._is_known = True
            self.is_of_kit = header.client_id == CLIENT_ID
            self.is_spared = (
                self.is_of_kit
                or header.client_id == REGISTRY_CLIENT_ID
                or self._is_of_node(header.client_id)
            )
            self._traced = self._traced and not self.is_spared
            if not self.is_spared:
                self._apis = self._faults.admitted(self._apis)

    def _is_of_node(self, client_id: str | None) -> bool:
        node_ids = self._node.cluster.node_ids
        return any(client_id == client_id_of(each) for each in node_ids if each != self._node.id)

    def _trace(self, header: RequestHeader, request: Any) -> None:
        """What the test itself asks would drown what its clients ask."""
        self._get_to_know(header)
        if not self.is_spared:
            super()._trace(header, request)

    def _refuse_or_answer(self, header: RequestHeader) -> None:
        self._get_to_know(header)
        super()._refuse_or_answer(header)

    def _is_served(self, header: RequestHeader) -> bool:
        api = self._apis.get(header.api_key)
        return api is not None and header.api_version in api.versions

    # -- requests

    async def _handle_frames(self) -> None:
        await super()._handle_frames()
        self._node.changes.happened()  # who waits for rest looks again: less is being worked on

    async def _handle(self, api: Api, header: RequestHeader, request: Any, rows: int) -> None:
        self._get_to_know(header)
        if self.is_spared:
            if self.is_of_kit:
                self._faults.own.add(api.key)
            await self._serve_plainly(api, header, request, rows)
        elif not self._is_served(header):
            self._refuse_or_answer(header)
        elif api.key == ApiKey.FETCH and self._names_too_little(header, request):
            self._reply(header, FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        else:
            asked = asked_of(
                api.key, header.api_version, header.client_id, request, self._name_of_topic
            )
            rule = self._faults.take(asked)
            asking = Asking(api, header, request, rows, asked)
            await (self._serve(asking) if rule is None else self._hit(rule, asking))

    async def _serve(self, asking: Asking) -> None:
        """Serve a request that no rule hits, unless one breaks its batches."""
        api, header, request, rows, asked = asking
        if self._faults.corrupts(asked):
            if api.key == ApiKey.PRODUCE:
                self._break_batches(asked, request)
            elif api.key == ApiKey.FETCH:
                await self._answer_with_broken_batches(asking)
                return
        await self._serve_plainly(api, header, request, rows)

    async def _serve_plainly(
        self, api: Api, header: RequestHeader, request: Any, rows: int
    ) -> None:
        unfinished = super()._handle(api, header, request, rows)
        if unfinished is not None:
            await unfinished

    async def _ordered_work(self, asking: Asking) -> Any:
        """Call the handler; what it returns is the answer, or stands for it."""
        result = asking.api.handler(self._context(asking.header, asking.rows), asking.request)
        return await result if isawaitable(result) else result

    def _names_too_little(self, header: RequestHeader, request: FetchRequest) -> bool:
        """A fetch of a session does not name its partitions (KIP-227), and a rule has to know them.

        A session that is not found any more makes the client name all of them.
        """
        return request.session_epoch > 0 and self._faults.must_know_partitions(
            header.client_id or ""
        )

    def _name_of_topic(self, topic_id: Any) -> str:
        topic = self._node.cluster.topics_by_id.get(topic_id)
        return topic.name if topic else ""

    async def _hit(self, rule: Rule, asking: Asking) -> None:
        """Carry out a rule on one request."""
        effect, (api, header, request, rows, _) = rule.effect, asking
        if rule.after:
            await self._answer(rule, asking)
        elif effect is Effect.HOOK:
            await self._ask_first(rule, asking)
        elif effect is Effect.ERROR:
            await self._refuse(rule, asking)
        elif effect is Effect.DISCONNECT:
            raise Refused(f"fault: {rule}")
        elif effect is Effect.BLACKHOLE:
            self._reply(header, Waiting(trio.sleep_forever))
        elif effect is Effect.DELAY:
            await trio.sleep(rule.milliseconds / 1000)
            await self._serve_plainly(api, header, request, rows)
        else:
            await self._answer(rule, asking)

    async def _refuse(self, rule: Rule, asking: Asking) -> None:
        """Answer with the error; rows about what is not meant are served as they should be."""
        api, header, request, _, _ = asking
        if rule.top_level:
            self._reply(header, messages.response_class(api.key)(error_code=rule.code))
            return
        kept, refused = split(request, rule.target, self._name_of_topic)
        refusal = error_answer(api.key, refused, rule.code)
        if kept is None:
            self._reply(header, refusal)
            return
        result = await self._ordered_work(asking._replace(request=kept))
        self._reply(header, _Changed(result, lambda response: joined(response, refusal)))

    async def _ask_first(self, rule: Rule, asking: Asking) -> None:
        """Let a hook answer, or another rule do what it does, or serve the request."""
        _, header, request, _, asked = asking
        try:
            answer = await self._ask_hook(rule, request, asked)
        except OSError as error:
            raise Refused(str(error)) from error
        if answer is not None:
            self._reply(header, answer)
            return
        next_rule = self._faults.take_next(asked, rule)
        await (self._serve(asking) if next_rule is None else self._hit(next_rule, asking))

    async def _ask_hook(self, rule: Rule, message: Any, asked: Asked) -> Any:
        """What a hook returns. Raises OSError to close the connection."""
        assert rule.hook is not None
        try:
            answer = rule.hook(message, asked)
            if isawaitable(answer):
                answer = await answer
            expected = messages.response_class(asked.api)
            if answer is not None and not isinstance(answer, expected):
                raise TypeError(f"a hook answers with None or a {expected.__name__}: {answer!r}")
            return answer
        except OSError:
            raise
        except Exception as error:
            self._faults.failures.append(error)
            raise ConnectionAbortedError(f"a hook failed: {error!r}") from error

    # -- batches

    def _break_batches(self, asked: Asked, message: Any) -> None:
        """Let a rule break the batches of a Produce request or a Fetch response, if there are any."""
        rule = self._faults.take_batch(asked, lambda rule: bool(self._batches(rule, message)))
        if rule is not None:
            for row in self._batches(rule, message):
                row.records = _flipped(row.records, rule.bit)

    def _batches(self, rule: Rule, message: Any) -> list[Any]:
        rows = covered_rows(message, rule.target, self._name_of_topic)
        return [row for row in rows if row.records]

    async def _answer_with_broken_batches(self, asking: Asking) -> None:
        def break_batches(response: Any) -> Any:
            self._break_batches(asking.asked, response)
            return response

        self._reply(asking.header, _Changed(await self._ordered_work(asking), break_batches))

    # -- answers

    async def _answer(self, rule: Rule, asking: Asking) -> None:
        """Do the work, then lie about it."""
        result = await self._ordered_work(asking)
        if result is not None:
            lie = partial(self._lie, rule, asking.asked)
            self._reply(asking.header, _Changed(result, lie))
        elif rule.effect is Effect.DISCONNECT:  # Produce with acks=0
            raise Refused(f"fault: {rule}")

    async def _lie(self, rule: Rule, asked: Asked, response: Any) -> Any:
        effect = rule.effect
        if effect is Effect.DISCONNECT:
            raise OSError(f"fault: {rule}")
        if effect is Effect.BLACKHOLE:
            await trio.sleep_forever()
        elif effect is Effect.DELAY:
            await trio.sleep(rule.milliseconds / 1000)
        elif effect is Effect.THROTTLE:
            if hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = int(rule.milliseconds)
        elif effect is Effect.ERROR:
            self._set_error(rule, response)
        elif effect is Effect.HOOK:
            answer = await self._ask_hook(rule, response, asked)
            return response if answer is None else answer
        elif effect in (Effect.HALF_FRAME, Effect.ANSWER_TWICE):
            return Mangled(response, effect)
        return response

    def _set_error(self, rule: Rule, response: Any) -> None:
        if rule.top_level:
            response.error_code = rule.code
        else:
            rows = covered_rows(response, rule.target, self._name_of_topic)
            set_errors(response, rule.code, rows)

    def _encode(self, asked: RequestHeader, response: Any) -> Parts:
        if not isinstance(response, Mangled):
            return super()._encode(asked, response)
        parts = super()._encode(asked, response.response)
        if response.effect is Effect.ANSWER_TWICE:
            return parts + parts
        while len(self._replies) > 1:
            _, reply, size, _, _ = self._replies.pop()
            self._queued_bytes -= size
            abandon(reply)
        self._replies.append((asked, Waiting(_break_off), 0, None, 0.0))
        return _half(parts)


async def _break_off() -> None:
    """Nothing more is answered."""
    raise OSError("fault: an answer ends in the middle")


async def _resolve(result: Any) -> Any:
    """The response that a handler's result stands for, which may be changed."""
    if isinstance(result, Encoded):
        return result.decoded()
    if isinstance(result, Pending):
        return await result.wait()
    return await result.begin() if isinstance(result, Waiting) else result


class _Changed(Pending[Any]):
    """An answer that is changed when it is there. Who gives up waiting gives up the original."""

    __slots__ = ("_change", "_original")

    is_given = False

    def __init__(self, original: Any, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self._original = original
        self._change = change

    async def until_ready(self) -> None:
        if isinstance(self._original, Pending):
            await self._original.until_ready()

    async def wait(self) -> Any:
        response = await _resolve(self._original)
        changed = None if response is None else self._change(response)
        return await changed if isawaitable(changed) else changed

    def abandon(self) -> None:
        if isinstance(self._original, Pending):
            self._original.abandon()
        super().abandon()


def _flipped(records: Any, bit: int) -> memoryview:
    """The records with one bit changed, behind the header of the first batch."""
    data = bytearray(records if isinstance(records, (bytes, memoryview)) else records.read())
    start = HEADER_SIZE if len(data) > HEADER_SIZE else 0
    data[start + (bit // 8) % (len(data) - start)] ^= 1 << (bit % 8)
    return memoryview(data)


def _half(parts: list[Any]) -> list[Any]:
    data = b"".join(
        bytes(part if isinstance(part, (bytes, memoryview, bytearray)) else part.read())
        for part in parts
    )
    return [data[: len(data) // 2]]
