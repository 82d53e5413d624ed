"""What the web console shows and changes of a broker under test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import trio

from .local import LocalBroker
from .schedule import AnyRule


class ConsoleBroker:
    """A broker that takes commands of tests; a `kbroker.web.console.under_test.UnderTest`.

    It is used in the event loop of the broker itself, whose calls are made from a thread.
    """

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._threads = trio.CapacityLimiter(1)
        self._numbers = itertools.count(1)
        self._numbered: dict[AnyRule, int] = {}

    def faults(self) -> list[dict[str, object]]:
        """Those that are armed."""
        armed = tuple(self._broker.faults.rules)
        known = self._numbered
        self._numbered = {rule: known.get(rule) or next(self._numbers) for rule in armed}
        return [
            {"number": number, "text": str(rule), "hits": rule.hits}
            for rule, number in self._numbered.items()
        ]

    def clocks(self) -> dict[str, object]:
        """How they stand."""
        clock = self._broker.clock.movable
        log, coordinator = clock.states()
        return {
            "log_ms": clock.log_ms(),
            "log_added_ms": log.added_ms,
            "log_is_frozen": log.frozen_ms is not None,
            "coordinator_added_ms": coordinator.added_ms,
        }

    async def disarm(self, number: int | None) -> None:
        """Take away one fault, or all of them, and what else is to fail. Raises ValueError."""
        if number is None:
            await self._call(self._broker.disarm_faults)
            return
        rule = next((rule for rule, each in self._numbered.items() if each == number), None)
        if rule is None or rule not in self._broker.faults.rules:
            raise ValueError(f"fault {number} is not armed any more")
        self._broker.faults.disarm(rule)

    async def advance(self, clock: str, seconds: float) -> None:
        """Let time pass for `log` or `coordinator`. Raises ValueError, RuntimeError."""
        clocks = self._broker.clock
        moved = clocks.advance if clock == "log" else clocks.coordinator.advance
        await self._call(partial(moved, seconds=seconds))

    async def _call(self, action: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(action, limiter=self._threads, abandon_on_cancel=True)
