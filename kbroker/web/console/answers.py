"""JSON responses of the console, and the mapping of errors to HTTP statuses."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from kbroker.client.errors import ClientError, next_action
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.time_slices import DutyCycle

from .statuses import UNREACHABLE, status_of

# Time that the event loop gets for other work, per unit of time spent on the console.
REST = 1
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

PARTITION_MAX = (1 << 31) - 1


class ApiError(Exception):
    """A failed request, with the status and reason of its response.

    Attributes:
        status: HTTP status.
        headers: Further headers of the response.
        details: Further fields of the response, for example the parameter that is invalid.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        headers: dict[str, str] | None = None,
        *,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers
        self.details = details or {}


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a JSON response in ASCII, because names may contain lone surrogates."""
    body = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    return Response(body, status, headers, media_type="application/json")


async def json_rows_response(
    value: Mapping[str, object], name: str, rows: Iterable[object]
) -> Response:
    """Return a JSON response with many rows under a name; pause between the rows."""
    body = await serialize_rows(value, name, rows) + b"\n"
    return Response(body, media_type="application/json")


async def serialize_rows(value: Mapping[str, object], name: str, rows: Iterable[object]) -> bytes:
    """Serialize an object with rows under a name; pause between the rows."""
    duty_cycle, parts = DutyCycle(rest=REST), []
    for row in rows:
        parts.append(json.dumps(row, separators=(",", ":")))
        await duty_cycle.pause()
    head = json.dumps(value, separators=(",", ":"))[:-1]
    comma = "," if value else ""
    return f'{head}{comma}"{name}":[{",".join(parts)}]}}'.encode()


def with_error_responses(handler: Handler) -> Handler:
    """Wrap a handler so that errors become responses."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except (ApiError, KafkaError, ClientError, OSError) as error:
            failed = api_error_of(error)
            body = {"error": str(failed), **failed.details}
            return json_response(body, failed.status, failed.headers)

    return handle


def api_error_of(error: ApiError | KafkaError | ClientError | OSError) -> ApiError:
    """Return the status and reason of the response for an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, KafkaError):
        message = error.message or next_action(error.code)
        text = f"{error.code.name}: {message}" if message else error.code.name
        return ApiError(status_of(error), text)
    if isinstance(error, ClientError):
        return ApiError(status_of(error), str(error))
    return ApiError(UNREACHABLE, str(error))


def path_number(request: Request, name: str, most: int) -> int:
    """Return an integer from the path of a request. Raises ApiError.

    Starlette's own converter fails with thousands of digits.
    """
    digits = request.path_params[name]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) <= most):
        raise ApiError(404, f"{name} must be an integer from 0 to {most}")
    return int(digits)


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return an integer from the query string of a request. Raises ApiError."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ApiError(400, f"{name} must be an integer, not {text[:40]!r}")
    value = int(text)
    if not least <= value <= most:
        raise ApiError(400, f"{name} must be from {least} to {most}")
    return value
