"""Test controls of the console: armed faults, and clocks that can be advanced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .answers import ApiError, json_response
from .api import ALTER_CLUSTER, DESCRIBE_CLUSTER, Api, field, read_json_body
from .sessions import Viewer
from .statuses import CONFLICT

CLOCKS = ("log", "coordinator")
SECONDS_MAX = 10 * 366 * 86_400
# Maximum number of faults per response.
FAULTS_MAX = 200


class UnderTest(Protocol):
    """A broker that accepts test commands."""

    def faults(self) -> list[dict[str, object]]:
        """Return the armed faults, oldest first, with `number`, `text` and `hits`."""

    def clocks(self) -> dict[str, object]:
        """Return `log_ms`, the ms added to each clock, and whether the log clock is frozen."""

    async def disarm(self, number: int | None) -> None:
        """Disarm one fault, or all faults and other failures for None. Raises ValueError."""

    async def advance(self, clock: str, seconds: float) -> None:
        """Advance one of `CLOCKS` by some seconds. Raises ValueError or RuntimeError."""


# Returns the broker of this process if it has started and accepts test commands, else None.
FindBroker: TypeAlias = Callable[[], UnderTest | None]


class Tests:
    """Routes for test controls."""

    def __init__(self, api: Api, find_broker: FindBroker) -> None:
        self._api = api
        self._find_broker = find_broker

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/tests", self._state, DESCRIBE_CLUSTER),
            self._api.write_route("/tests/disarm", self._disarm, ALTER_CLUSTER),
            self._api.write_route("/tests/advance", self._advance, ALTER_CLUSTER),
        ]

    def _broker(self) -> UnderTest:
        find_broker = self._find_broker()
        if find_broker is None:
            raise ApiError(
                404, "this broker does not accept test commands; start it with --control-port"
            )
        return find_broker

    async def _state(self, _: Request, __: Viewer) -> Response:
        broker = self._broker()
        faults = broker.faults()
        state = {"faults": faults[-FAULTS_MAX:], "fault_count": len(faults)}
        return json_response(state | broker.clocks())

    async def _disarm(self, request: Request, _: Viewer) -> Response:
        """Disarm one fault by number, or all."""
        broker = self._broker()
        number = field(await read_json_body(request), "fault", int)
        try:
            await broker.disarm(number)
        except ValueError as error:
            raise ApiError(CONFLICT, str(error)) from None
        return json_response({})

    async def _advance(self, request: Request, _: Viewer) -> Response:
        broker = self._broker()
        body = await read_json_body(request)
        clock = field(body, "clock", str, "log")
        seconds = field(body, "seconds", int)
        if clock not in CLOCKS:
            raise ApiError(400, f"clock must be {' or '.join(CLOCKS)}")
        if seconds is None or not 0 < seconds <= SECONDS_MAX:
            raise ApiError(400, f"seconds must be from 1 to {SECONDS_MAX}; clocks cannot go back")
        try:
            await broker.advance(clock, seconds)
        except (ValueError, RuntimeError) as error:
            raise ApiError(CONFLICT, str(error)) from None
        return json_response({})
