"""Access of the web console to a broker under test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import trio

from .local import LocalBroker
from .schedule import AnyRule


class ConsoleBroker:
    """A broker under test for the web console; a `kbroker.web.console.under_test.UnderTest`.

    The methods run in the event loop of the broker. Methods of `LocalBroker` block, so they run in a
    thread.
    """

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._threads = trio.CapacityLimiter(1)
        self._numbers = itertools.count(1)
        self._numbered: dict[AnyRule, int] = {}

    def faults(self) -> list[dict[str, object]]:
        """Return the armed faults with their numbers."""
        armed = tuple(self._broker.faults.rules)
        known = self._numbered
        self._numbered = {rule: known.get(rule) or next(self._numbers) for rule in armed}
        return [
            {"number": number, "text": str(rule), "hits": rule.hits}
            for rule, number in self._numbered.items()
        ]

    def clocks(self) -> dict[str, object]:
        """Return the state of the clocks, in ms."""
        clock = self._broker.clock.movable
        log, coordinator = clock.states()
        return {
            "log_ms": clock.log_ms(),
            "log_added_ms": log.added_ms,
            "log_is_frozen": log.frozen_ms is not None,
            "coordinator_added_ms": coordinator.added_ms,
        }

    async def disarm(self, number: int | None) -> None:
        """Remove one fault; None removes all faults, disk faults and a pending crash.

        Raises:
            ValueError: The fault is not armed.
        """
        if number is None:
            await self._call(self._broker.disarm_faults)
            return
        rule = next((rule for rule, each in self._numbered.items() if each == number), None)
        if rule is None or rule not in self._broker.faults.rules:
            raise ValueError(f"fault {number} is not armed; refresh the list of faults")
        self._broker.faults.disarm(rule)

    async def advance(self, clock: str, seconds: float) -> None:
        """Move the clock `log` or `coordinator` ahead.

        Args:
            clock: "log" or "coordinator".
            seconds: Seconds to add.

        Raises:
            ValueError: `seconds` is zero or negative.
            RuntimeError: The broker is stopped or has crashed.
        """
        clocks = self._broker.clock
        advance = clocks.advance if clock == "log" else clocks.coordinator.advance
        await self._call(partial(advance, seconds=seconds))

    async def _call(self, action: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(action, limiter=self._threads, abandon_on_cancel=True)
