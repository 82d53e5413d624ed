"""Work that ends when the client of a request disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from starlette.requests import Request
from starlette.types import Receive

from .answers import ApiError

Result = TypeVar("Result")
# Status for the log; nobody receives the response.
CLIENT_CLOSED_REQUEST = 499


async def while_connected(request: Request, work: Callable[[], Awaitable[Result]]) -> Result:
    """Do work for a request without a body, and cancel the work if the client disconnects.

    Raises:
        ApiError: The client disconnected before the end of the work.
        Exception: The work failed.
    """
    results: list[Result] = []
    errors: list[Exception] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_on_disconnect, request.receive, nursery.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below, outside of the nursery
            errors.append(error)
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise ApiError(CLIENT_CLOSED_REQUEST, "the client disconnected")
    return results[0]


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel a scope when the client of a request disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
