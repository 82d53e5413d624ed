"""Responses of the registry: JSON, text, long lists in chunks, and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .core.errors import CONTENT_TYPE, RegistryError

# HTTP status of an internal error.
FAILED = 500
# Maximum size of one ASGI body message.
SLICE_BYTES = 64 * 1024

Call: TypeAlias = Callable[[Request], Awaitable[object]]


def route(path: str, **calls: Call) -> Route:
    """Return a route that serves a call for each HTTP method; results are sent as JSON."""

    async def serve(request: Request) -> Response:
        call = calls.get("GET" if request.method == "HEAD" else request.method)
        assert call is not None  # Starlette rejects other methods
        result = await call(request)
        if isinstance(result, Awaitable):
            result = await result
        return result if isinstance(result, Response) else json_response(to_json(result))

    return Route(path, serve, methods=[*calls])


def to_json(value: object) -> bytes:
    """Encode as JSON without white space."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_response(body: bytes, status: int = 200) -> Response:
    """Return a response with a JSON body and an HTTP status."""
    return Response(body, status, media_type=CONTENT_TYPE)


class ChunkedResponse(Response):
    """A response whose chunks are created while it is sent (Starlette's StreamingResponse needs anyio)."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [row for row in self.raw_headers if row[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        # The client may disconnect between two chunks: the generator must end with the request.
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                # Send small slices: the transport copies the data that a slow client has not read yet.
                for start in range(0, len(chunk), SLICE_BYTES):
                    body = chunk[start : start + SLICE_BYTES]
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def text_response(text: str) -> Response:
    """Return a response with the text of a schema."""
    return Response(text.encode("utf-8", "replace"), media_type=CONTENT_TYPE)


def error_body(code: int, message: str) -> bytes:
    """Return the JSON of an error as Confluent's clients read it."""
    return to_json({"error_code": code, "message": message})


async def _handle_registry_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return error_response(error)


def error_response(error: RegistryError) -> Response:
    """Return the response for an error of the registry."""
    response = json_response(error_body(error.code, error.message), error.status)
    response.headers.update(error.headers or {})
    return response


async def _handle_other_error(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", FAILED)
    return json_response(error_body(status, f"HTTP {status} {HTTPStatus(status).phrase}"), status)


EXCEPTION_HANDLERS: Mapping[object, Callable[[Request, Exception], Awaitable[Response]]] = {
    RegistryError: _handle_registry_error,
    HTTPException: _handle_other_error,
    FAILED: _handle_other_error,
}
