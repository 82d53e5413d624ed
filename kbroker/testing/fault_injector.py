"""Faults of the test kit, injected into the requests and replies of a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from kbroker.cluster.peers import is_of_node
from kbroker.handlers.context import DisconnectError
from kbroker.net.replies import Parts, Replies
from kbroker.net.requests import Request, Requests
from kbroker.node.node import Node
from kbroker.partitions.waiters import Outcome, Pending, Waiting
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded, with_throttle_time
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import RequestHeader
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.records import HEADER_SIZE
from kbroker.protocol.schema import Message, as_message
from kbroker.schemas import CLIENT_ID as REGISTRY_CLIENT_ID

from .error_responses import error_response
from .kit import CLIENT_ID
from .rows import Row, covered_rows, merge_responses, set_errors, split
from .rules import Faults, RequestInfo, Rule, request_info
from .schedule import Effect

if TYPE_CHECKING:
    from uuid import UUID


class InterceptedRequest(NamedTuple):
    """A request, and the parts of it that fault rules compare."""

    request: Request
    info: RequestInfo


class FaultInjector:
    """Applies fault rules to the requests of one connection.

    While a request is delayed, or a hook handles it, later requests of the same client wait, as on
    a slow network: requests are handled in the order of arrival.

    Args:
        faults: The rules of the broker under test.
        node: The node that serves the connection.
        requests: The connection's requests; faults are injected before their handlers.
        replies: The connection's replies; faults may change their bytes.
    """

    def __init__(self, faults: Faults, node: Node, requests: Requests, replies: Replies) -> None:
        self._faults = faults
        self._node = node
        self._requests = requests
        self._replies = replies
        self._is_known = False
        # Effects that change the bytes of a response, by correlation ID.
        self._altered: dict[int, Effect] = {}
        # True if the test kit has opened the connection.
        self.is_kit_connection = False
        # True if no fault hits the connection, because its client is the kit, the schema registry or
        # a node.
        self.is_exempt = False
        replies.on_encoded = self._alter_reply

    # -- identification of the client

    def identify(self, header: RequestHeader) -> None:
        """Identify the client from its first request, and limit the APIs of the connection."""
        if self._is_known:
            return
        self._is_known = True
        self.is_kit_connection = header.client_id == CLIENT_ID
        self.is_exempt = (
            self.is_kit_connection
            or header.client_id == REGISTRY_CLIENT_ID
            or self._is_of_node(header.client_id)
        )
        if self.is_exempt:  # traces of these requests would hide the requests of clients
            self._replies.is_traced = False
        else:
            self._requests.apis = self._faults.within_limits(self._requests.apis)

    def _is_of_node(self, client_id: str | None) -> bool:
        others = (each for each in self._node.cluster.node_ids if each != self._node.id)
        return is_of_node(client_id, others)

    # -- requests

    def finished(self) -> None:
        """Wake waits for an idle broker, because a request has finished."""
        self._node.context.changes.notify()

    def dispatch(self, request: Request) -> Awaitable[None] | None:
        """Serve a request, or apply the rule that hits it."""
        api, header, body, _ = request
        if self.is_exempt:
            if self.is_kit_connection:
                self._faults.kit_apis.add(api.key)
            return self._requests.dispatch(*request)
        if api.key == ApiKey.FETCH and self._lacks_partitions(header, body):
            not_found = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            self._requests.reply(header, as_message(not_found))
            return None
        info = request_info(
            api.key, header.api_version, header.client_id, body, self._name_of_topic
        )
        rule = self._faults.match_request(info)
        intercepted = InterceptedRequest(request, info)
        return self._serve(intercepted) if rule is None else self._hit(rule, intercepted)

    async def _serve(self, intercepted: InterceptedRequest) -> None:
        """Serve a request that no rule hits, unless a rule corrupts its batches."""
        request, info = intercepted
        if self._faults.corrupts(info):
            if request.api.key == ApiKey.PRODUCE:
                self._corrupt_batches(info, request.body)
            elif request.api.key == ApiKey.FETCH:
                await self._serve_with_corrupt_batches(intercepted)
                return
        await self._serve_plainly(request)

    async def _serve_plainly(self, request: Request) -> None:
        unfinished = self._requests.dispatch(*request)
        if unfinished is not None:
            await unfinished

    async def _call_handler(self, request: Request) -> Outcome[Message]:
        """Call the handler and return the outcome."""
        result = self._requests.call_handler(*request)
        return await result if isawaitable(result) else result

    def _lacks_partitions(self, header: RequestHeader, request: Any) -> bool:
        """Return True for an incremental fetch that a rule cannot match (KIP-227).

        An incremental fetch does not list its partitions. The error FETCH_SESSION_ID_NOT_FOUND
        makes the client send a full fetch, which lists all partitions.
        """
        return request.session_epoch > 0 and self._faults.needs_partitions(header.client_id or "")

    def _name_of_topic(self, topic_id: UUID) -> str:
        topic = self._node.cluster.topics_by_id.get(topic_id)
        return topic.name if topic else ""

    async def _hit(self, rule: Rule, intercepted: InterceptedRequest) -> None:
        """Apply a rule to one request."""
        effect, (request, _) = rule.effect, intercepted
        if rule.after:
            await self._serve_and_apply(rule, intercepted)
        elif effect is Effect.HOOK:
            await self._apply_hook(rule, intercepted)
        elif effect is Effect.ERROR:
            await self._reply_with_error(rule, intercepted)
        elif effect is Effect.DISCONNECT:
            raise DisconnectError(f"fault: {rule}")
        elif effect is Effect.BLACKHOLE:
            self._requests.reply(request.header, Waiting(trio.sleep_forever))
        elif effect is Effect.DELAY:
            await trio.sleep(rule.milliseconds / 1000)
            await self._serve_plainly(request)
        else:
            await self._serve_and_apply(rule, intercepted)

    async def _reply_with_error(self, rule: Rule, intercepted: InterceptedRequest) -> None:
        """Reject the rows of a request that match the rule, and serve the other rows."""
        request = intercepted.request
        key, header = request.api.key, request.header
        if rule.top_level:
            self._requests.reply(header, messages.response_class(key)(error_code=rule.code))
            return
        others, matching = split(request.body, rule.target, self._name_of_topic)
        rejection = error_response(key, matching, rule.code)
        if others is None:
            self._requests.reply(header, rejection)
            return

        async def join(response: Message) -> Message:
            return as_message(merge_responses(response, rejection))

        result = await self._call_handler(request._replace(body=others))
        self._requests.reply(header, _ChangedResponse(result, join))

    async def _apply_hook(self, rule: Rule, intercepted: InterceptedRequest) -> None:
        """Send the response of a hook, or apply the next rule, or serve the request."""
        request, info = intercepted
        passed = self._faults.rules_until(rule)
        try:
            response = await self._call_hook(rule, request.body, info)
        except OSError as error:
            raise DisconnectError(str(error)) from error
        if response is not None:
            self._requests.reply(request.header, response)
            return
        next_rule = self._faults.match_after(info, passed)
        await (self._serve(intercepted) if next_rule is None else self._hit(next_rule, intercepted))

    async def _call_hook(self, rule: Rule, message: Message, info: RequestInfo) -> Message | None:
        """Return the result of a hook.

        Raises:
            OSError: The hook raised it to close the connection.
        """
        assert rule.hook is not None
        try:
            response = rule.hook(message, info)
            if isawaitable(response):
                response = await response
            expected = messages.response_class(info.api)
            if response is None or isinstance(response, expected):
                return response
            raise TypeError(f"a hook must return None or a {expected.__name__}, not {response!r}")
        except OSError:
            raise
        except Exception as error:
            self._faults.failures.append(error)
            raise ConnectionAbortedError(f"a hook failed: {error!r}") from error

    # -- batches

    def _corrupt_batches(self, info: RequestInfo, message: object) -> None:
        """Apply a rule to the batches of a Produce request or a Fetch response, if it has any."""
        rule = self._faults.match_batch(info, lambda rule: bool(self._batches(rule, message)))
        if rule is not None:
            for row in self._batches(rule, message):
                row.records = _flip_bit(row.records, rule.bit)

    def _batches(self, rule: Rule, message: object) -> list[Row]:
        rows = covered_rows(message, rule.target, self._name_of_topic)
        return [row for row in rows if row.records]

    async def _serve_with_corrupt_batches(self, intercepted: InterceptedRequest) -> None:
        async def break_batches(response: Message) -> Message:
            self._corrupt_batches(intercepted.info, response)
            return response

        result = await self._call_handler(intercepted.request)
        self._requests.reply(intercepted.request.header, _ChangedResponse(result, break_batches))

    # -- responses

    async def _serve_and_apply(self, rule: Rule, intercepted: InterceptedRequest) -> None:
        """Handle the request, then apply the effect to its response."""
        request = intercepted.request
        result = await self._call_handler(request)
        if result is not None:
            change = partial(self._apply_effect, rule, intercepted)
            self._requests.reply(request.header, _ChangedResponse(result, change))
        elif rule.effect is Effect.DISCONNECT:  # Produce with acks=0
            raise DisconnectError(f"fault: {rule}")

    async def _apply_effect(
        self, rule: Rule, intercepted: InterceptedRequest, response: Message
    ) -> Message:
        effect = rule.effect
        if effect is Effect.DISCONNECT:
            raise OSError(f"fault: {rule}")
        if effect is Effect.BLACKHOLE:
            await trio.sleep_forever()
        elif effect is Effect.DELAY:
            await trio.sleep(rule.milliseconds / 1000)
        elif effect is Effect.THROTTLE:
            response = with_throttle_time(response, int(rule.milliseconds))
        elif effect is Effect.ERROR:
            self._set_error(rule, response)
        elif effect is Effect.HOOK:
            replacement = await self._call_hook(rule, response, intercepted.info)
            return response if replacement is None else replacement
        elif effect in (Effect.TRUNCATE_RESPONSE, Effect.DUPLICATE_RESPONSE):
            self._altered[intercepted.request.header.correlation_id] = effect
        return response

    def _set_error(self, rule: Rule, response: Any) -> None:
        if rule.top_level:
            response.error_code = rule.code
        else:
            rows = covered_rows(response, rule.target, self._name_of_topic)
            set_errors(response, rule.code, rows)

    def _alter_reply(self, header: RequestHeader, parts: Parts) -> Parts:
        """Send a reply twice, or send half of it and then close the connection."""
        effect = self._altered.pop(header.correlation_id, None)
        if effect is None:
            return parts
        if effect is Effect.DUPLICATE_RESPONSE:
            return parts + parts
        self._replies.end_after_first(OSError("fault: a response is truncated"))
        return _first_half(parts)


async def _resolve(result: Outcome[Message]) -> Message | None:
    """Wait for the response of an outcome; decode an encoded response, so that it can change."""
    response: Message | None
    if isinstance(result, Pending):
        response = await result.wait()
    elif isinstance(result, Waiting):
        response = await result.begin()
    else:
        response = result
    return response.decoded() if isinstance(response, Encoded) else response


class _ChangedResponse(Pending[Message]):
    """A pending response to which a change is applied. `abandon` also abandons the original."""

    __slots__ = ("_change", "_original")

    is_given = False

    def __init__(
        self, original: Outcome[Message], change: Callable[[Message], Awaitable[Message]]
    ) -> None:
        super().__init__()
        self._original = original
        self._change = change

    async def until_ready(self) -> None:
        if isinstance(self._original, Pending):
            await self._original.until_ready()

    async def wait(self) -> Message | None:
        response = await _resolve(self._original)
        return None if response is None else await self._change(response)

    def abandon(self) -> None:
        if isinstance(self._original, Pending):
            self._original.abandon()
        super().abandon()


def _flip_bit(records: Any, bit: int) -> memoryview:
    """Return records with one bit flipped, after the header of the first batch."""
    data = bytearray(records if isinstance(records, (bytes, memoryview)) else records.read())
    start = HEADER_SIZE if len(data) > HEADER_SIZE else 0
    data[start + (bit // 8) % (len(data) - start)] ^= 1 << (bit % 8)
    return memoryview(data)


def _first_half(parts: list[Any]) -> list[Any]:
    data = b"".join(
        bytes(part if isinstance(part, (bytes, memoryview, bytearray)) else part.read())
        for part in parts
    )
    return [data[: len(data) // 2]]
