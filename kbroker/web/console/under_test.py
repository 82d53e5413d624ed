"""What a test does to the broker: faults that wait for requests, and clocks that are moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .answers import CONFLICT, Refusal, answer
from .api import ALTER_CLUSTER, DESCRIBE_CLUSTER, Api, document, field
from .sessions import Viewer

CLOCKS = ("log", "coordinator")
SECONDS_MAX = 10 * 366 * 86_400
FAULTS_MAX = 200
"""Of one answer."""


class UnderTest(Protocol):
    """A broker that takes commands of tests."""

    def faults(self) -> list[dict[str, object]]:
        """Those that are armed, oldest first: their `number`, `text`, `hits`."""

    def clocks(self) -> dict[str, object]:
        """How they stand: `log_ms`, how much was added to each in ms, whether the log's stands still."""

    async def disarm(self, number: int | None) -> None:
        """Take away one fault, or all of them, and what else is to fail. Raises ValueError."""

    async def advance(self, clock: str, seconds: float) -> None:
        """Let time pass for one of `CLOCKS`. Raises ValueError, RuntimeError."""


Found: TypeAlias = Callable[[], UnderTest | None]
"""The broker of this process if it takes commands of tests; that is known when it has started."""


class Tests:
    """What the console tells of a test, and changes for it."""

    def __init__(self, api: Api, found: Found) -> None:
        self._api = api
        self._found = found

    def routes(self) -> list[Route]:
        """Where it is told."""
        return [
            self._api.look("/tests", self._state, DESCRIBE_CLUSTER),
            self._api.change("/tests/disarm", self._disarm, ALTER_CLUSTER),
            self._api.change("/tests/advance", self._advance, ALTER_CLUSTER),
        ]

    def _broker(self) -> UnderTest:
        found = self._found()
        if found is None:
            raise Refusal(404, "this broker takes no commands of tests: --control-port lets it")
        return found

    async def _state(self, _: Request, __: Viewer) -> Response:
        broker = self._broker()
        faults = broker.faults()
        state = {"faults": faults[-FAULTS_MAX:], "fault_count": len(faults)}
        return answer(state | broker.clocks())

    async def _disarm(self, request: Request, _: Viewer) -> Response:
        """One fault by its number, or all."""
        broker = self._broker()
        number = field(await document(request), "fault", int)
        try:
            await broker.disarm(number)
        except ValueError as error:
            raise Refusal(CONFLICT, str(error)) from None
        return answer({})

    async def _advance(self, request: Request, _: Viewer) -> Response:
        broker = self._broker()
        asked = await document(request)
        clock = field(asked, "clock", str, "log")
        seconds = field(asked, "seconds", int)
        if clock not in CLOCKS:
            raise Refusal(400, f"clock is {' or '.join(CLOCKS)}")
        if seconds is None or not 0 < seconds <= SECONDS_MAX:
            raise Refusal(400, f"seconds are from 1 to {SECONDS_MAX}: clocks do not go back")
        try:
            await broker.advance(clock, seconds)
        except (ValueError, RuntimeError) as error:
            raise Refusal(CONFLICT, str(error)) from None
        return answer({})
