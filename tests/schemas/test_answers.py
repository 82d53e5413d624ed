"""Responses of the registry."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import trio
from starlette.requests import Request
from starlette.types import Message

from kbroker.schemas.answers import (
    EXCEPTION_HANDLERS,
    SLICE_BYTES,
    ChunkedResponse,
    error_response,
    route,
    text_response,
)
from kbroker.schemas.core.errors import CONTENT_TYPE, NO_SUCH_SCHEMA, RegistryError


async def messages_sent_by(app: Any, method: str = "GET", path: str = "/") -> list[Message]:
    """Return the messages that an application sends for a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return sent


async def test_result_of_a_call_is_sent_as_compact_json() -> None:
    async def call(_: Request) -> object:
        return {"a": [1, 2]}

    start, body = await messages_sent_by(route("/", GET=call).app)
    assert body["body"] == b'{"a":[1,2]}'
    assert (b"content-type", CONTENT_TYPE.encode()) in start["headers"]


async def test_awaitable_result_of_a_call_is_awaited() -> None:
    async def delayed_response() -> object:
        return text_response("int")

    async def call(_: Request) -> object:
        return delayed_response()

    _, body = await messages_sent_by(route("/", GET=call).app)
    assert body["body"] == b"int"


async def test_long_chunks_are_sent_in_slices() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x" * (SLICE_BYTES + 1)

    start, *bodies = await messages_sent_by(ChunkedResponse(chunks()))
    assert [len(each["body"]) for each in bodies] == [SLICE_BYTES, 1, 0]
    assert b"content-length" not in dict(start["headers"])


def test_error_is_sent_with_its_code_and_headers() -> None:
    response = error_response(RegistryError(NO_SUCH_SCHEMA, "Schema not found"))
    assert response.status_code == 404
    assert response.body == b'{"error_code":40403,"message":"Schema not found"}'


async def test_unknown_exception_is_an_internal_error() -> None:
    request = Request({"type": "http"})
    response = await EXCEPTION_HANDLERS[500](request, ValueError("secret"))
    assert response.status_code == 500
    assert response.body == b'{"error_code":500,"message":"HTTP 500 Internal Server Error"}'


async def test_generator_of_chunks_ends_if_the_client_disconnects() -> None:
    ended = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
        finally:
            ended.append(True)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            scope.cancel()
        await trio.lowlevel.checkpoint()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    response = ChunkedResponse(chunks())
    with trio.CancelScope() as scope:
        await response({"type": "http"}, receive, send)
    assert ended == [True]
