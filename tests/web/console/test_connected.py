"""Requests whose client disconnects before the response."""

from __future__ import annotations

import pytest
import trio
from starlette.requests import Request
from starlette.types import Message

from kbroker.web.console.answers import ApiError
from kbroker.web.console.connected import CLIENT_CLOSED_REQUEST, while_connected


class Client:
    """Client that disconnects when its event is set."""

    def __init__(self) -> None:
        self.leaves = trio.Event()
        self.request = Request({"type": "http"}, self._receive)
        self._has_sent_body = False

    async def _receive(self) -> Message:
        if not self._has_sent_body:
            self._has_sent_body = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def test_work_is_cancelled_when_client_disconnects() -> None:
    client, cancelled = Client(), trio.Event()

    async def search() -> None:
        client.leaves.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(ApiError) as caught:
        await while_connected(client.request, search)
    assert caught.value.status == CLIENT_CLOSED_REQUEST
    assert cancelled.is_set()


async def test_result_and_error_of_work_reach_the_caller() -> None:
    async def finish() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    async def fail() -> int:
        await trio.lowlevel.checkpoint()
        raise ApiError(404, "absent")

    assert await while_connected(Client().request, finish) == 7
    with pytest.raises(ApiError, match="absent"):
        await while_connected(Client().request, fail)
