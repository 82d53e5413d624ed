"""The parts of requests to the registry: paths, queries and bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import unquote

from starlette.requests import Request

from kbroker.text.documents import read_request_json

from .core.errors import BAD_REQUEST, RegistryError, invalid_schema
from .core.store import ID_MAX
from .core.values import Content, content_of

NOT_FOUND = 404
# Maximum number of digits of `offset` and `limit`.
COUNT_DIGITS_MAX = 10

T = TypeVar("T")


def path_value(request: Request, name: str) -> str:
    """Return a variable part of the path, percent-decoded."""
    return unquote(request.path_params[name])


def subject_of(request: Request) -> str | None:
    """Return the subject in the path; None if the path names none."""
    return path_value(request, "subject") if "subject" in request.path_params else None


def schema_id_of(request: Request) -> int:
    """Return the schema ID in the path.

    Raises:
        RegistryError: The path contains no valid ID.
    """
    text = path_value(request, "id")
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > ID_MAX:
        raise RegistryError(NOT_FOUND, "HTTP 404 Not Found")  # as for a path that is not served
    return int(text)


def client_of(request: Request) -> str:
    """Return the client address of a request, for the round-robin order of tasks."""
    return request.client.host if request.client else ""


def flag(request: Request, name: str) -> bool:
    """Return True if a flag is set in the query."""
    return request.query_params.get(name, "").lower() == "true"


def page(request: Request, rows: list[T]) -> list[T]:
    """Return the rows that `offset` and `limit` in the query select."""
    first, count = (_count(request, each) for each in ("offset", "limit"))
    rows = rows[first:]
    return rows[:count] if count else rows


def _count(request: Request, name: str) -> int:
    """Return a number of rows in the query; 0 if it is missing or not a number."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= COUNT_DIGITS_MAX
    return int(text) if is_number else 0


async def body_of(request: Request) -> Mapping[str, object]:
    """Return the JSON object in the body.

    Raises:
        RegistryError: The body is not a JSON object.
    """
    try:
        body = read_request_json(await request.body())
    except ValueError as error:
        raise RegistryError(BAD_REQUEST, f"request body: invalid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RegistryError(BAD_REQUEST, "request body: expected a JSON object")
    return body


def content_in(body: Mapping[str, object]) -> Content:
    """Return the schema in a body.

    Raises:
        RegistryError: The schema is invalid.
    """
    try:
        return content_of(body)
    except ValueError as error:
        raise invalid_schema(str(error)) from None


def number_in(body: Mapping[str, object], name: str) -> int:
    """Return a number in a body; -1 if it is missing.

    Raises:
        RegistryError: The value is not an integer from -1 to the maximum schema ID.
    """
    value = body.get(name)
    if value is None:
        return -1
    if type(value) is not int or not -1 <= value <= ID_MAX:
        raise RegistryError(BAD_REQUEST, f"{name}: expected an integer from -1 to {ID_MAX}")
    return value
