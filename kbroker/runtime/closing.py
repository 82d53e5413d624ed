"""Concurrent closing of several resources, each of which is closed even if another one fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio


async def close_concurrently(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call functions concurrently. An error of one of them does not cancel the others.

    Args:
        closers: Functions that close a resource.

    Raises:
        Exception: The error of the only function that failed.
        ExceptionGroup: The errors of several functions that failed.
    """
    errors: list[Exception] = []

    async def close(closer: Callable[[], Awaitable[None]]) -> None:
        try:
            await closer()
        except Exception as error:  # noqa: BLE001  # raised when the other functions have returned
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for each in closers:
            nursery.start_soon(close, each)
    if len(errors) == 1:
        raise errors.pop()
    if errors:
        raise ExceptionGroup("several resources cannot be closed", errors)
