"""Responses of the registry: JSON, text, long lists in chunks, and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .core.errors import CONTENT_TYPE, RegistryError

FAILED = 500
SLICE_BYTES = 64 * 1024

Call: TypeAlias = Callable[[Request], Awaitable[object]]


def route(path: str, **calls: Call) -> Route:
    """Return a route that serves a call for each HTTP method; results are sent as JSON."""

    async def served(request: Request) -> Response:
        call = calls.get("GET" if request.method == "HEAD" else request.method)
        assert call is not None  # Starlette refuses other methods
        made = await call(request)
        if isinstance(made, Awaitable):
            made = await made
        return made if isinstance(made, Response) else json_answer(to_json(made))

    return Route(path, served, methods=[*calls])


def to_json(value: object) -> bytes:
    """Encode as JSON without white space."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_answer(body: bytes, status: int = 200) -> Response:
    """Return a response with JSON."""
    return Response(body, status, media_type=CONTENT_TYPE)


class ChunkedResponse(Response):
    """A response whose chunks are created while it is sent (Starlette's StreamingResponse needs anyio)."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [row for row in self.raw_headers if row[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async for piece in self._pieces:
            # Send small slices: the transport copies the data that a slow client has not read yet.
            for at in range(0, len(piece), SLICE_BYTES):
                body = piece[at : at + SLICE_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def text_answer(text: str) -> Response:
    """Return a response with the text of a schema."""
    return Response(text.encode("utf-8", "replace"), media_type=CONTENT_TYPE)


def error_body(code: int, message: str) -> bytes:
    """Return the JSON of an error as Confluent's clients read it."""
    return to_json({"error_code": code, "message": message})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return refusal(error)


def refusal(error: RegistryError) -> Response:
    """Return the response for an error of the registry."""
    answer = json_answer(error_body(error.code, error.message), error.status)
    answer.headers.update(error.headers or {})
    return answer


async def _unknown(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", FAILED)
    return json_answer(error_body(status, f"HTTP {status} {HTTPStatus(status).phrase}"), status)


EXCEPTION_HANDLERS: Mapping[object, Callable[[Request, Exception], Awaitable[Response]]] = {
    RegistryError: _refused,
    HTTPException: _unknown,
    FAILED: _unknown,
}
