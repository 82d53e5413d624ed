"""Base class of faults: schedule and effects for both the Kafka API and the schema registry."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from .arguments import check_number
from .rules import Faults
from .schedule import AnyRule, Effect

R = TypeVar("R", bound=AnyRule)
# Return type of waits: None, or an awaitable of None in async programs.
Waited = TypeVar("Waited")


class AnyFault(Generic[R, Waited]):
    """One armed fault. Each method changes the fault and returns it, so that calls can be chained.

    By default a fault hits the next matching request, once.
    """

    def __init__(
        self, faults: Faults, rule: R, wait: Callable[[AnyRule, int, float], Waited]
    ) -> None:
        self._faults = faults
        self._rule = rule
        self._wait = wait

    # -- schedule

    def once(self) -> Self:
        """Hit only the next matching request.

        Returns:
            This fault.
        """
        return self.times(1)

    def on_call(self, number: int) -> Self:
        """Let matching requests pass until the given one, and hit that one.

        Args:
            number: Number of the matching request to hit, counted from 1.

        Returns:
            This fault.

        Raises:
            ValueError: `number` is less than 1. The fault is disarmed.
        """
        self._check_number("on_call", number, 1)
        self._rule.first = number
        return self

    def times(self, count: int) -> Self:
        """Hit the next matching requests, up to a maximum.

        One hit is enough for the test to pass. Call `wait` to require more.

        Args:
            count: Maximum number of hits, at least 1.

        Returns:
            This fault.

        Raises:
            ValueError: `count` is less than 1. The fault is disarmed.
        """
        self._check_number("times", count, 1)
        self._rule.count = count
        return self

    def always(self) -> Self:
        """Hit all matching requests.

        Returns:
            This fault.
        """
        self._rule.count = math.inf
        return self

    def with_probability(self, probability: float, seed: int = 0) -> Self:
        """Hit each matching request with a probability; hitting none does not fail the test.

        Args:
            probability: From 0 to 1.
            seed: Seed of the random numbers, to repeat a run.

        Returns:
            This fault.

        Raises:
            ValueError: `probability` is not from 0 to 1. The fault is disarmed.
        """
        self._check_number("probability", probability, 0, 1)
        self._rule.probability = probability
        self._rule.random = random.Random(seed)
        return self.always().optional()

    def optional(self) -> Self:
        """Do not fail the test if this fault hits nothing.

        Returns:
            This fault.
        """
        self._rule.may_stay_unfired = True
        return self

    # -- effect

    def disconnect(self) -> Self:
        """Close the connection.

        Returns:
            This fault.

        Raises:
            ValueError: The fault already has an effect. The fault is disarmed.
        """
        return self._set_effect(Effect.DISCONNECT)

    def delay(self, milliseconds: float) -> Self:
        """Delay the request. Later requests of the same connection wait for it.

        Args:
            milliseconds: Delay in ms, at least 0.

        Returns:
            This fault.

        Raises:
            ValueError: `milliseconds` is negative, or the fault already has an effect. The fault is
                disarmed.
        """
        self._check_number("milliseconds", milliseconds, 0)
        return self._set_effect(Effect.DELAY, milliseconds=milliseconds)

    def blackhole(self) -> Self:
        """Never send a response, and keep the connection open.

        Returns:
            This fault.

        Raises:
            ValueError: The fault already has an effect. The fault is disarmed.
        """
        return self._set_effect(Effect.BLACKHOLE)

    def _set_effect(self, effect: Effect, **settings: object) -> Self:
        try:
            if self._rule.effect is not Effect.PASS:
                raise ValueError(
                    f"fault: it already has the effect {self._rule}; arm another fault for the "
                    "second effect"
                )
            for name, value in settings.items():
                setattr(self._rule, name, value)
            self._rule.reset_counts()
            self._rule.effect = effect
            self._check_effect()
        except ValueError:
            self.disarm()
            raise
        return self

    def _check_effect(self) -> None:
        """Raise ValueError if no matching request can have the effect."""

    def _check_number(self, name: str, value: float, least: float, most: float = math.inf) -> None:
        try:
            check_number(name, value, least, most)
        except ValueError:
            self.disarm()
            raise

    # -- hits

    @property
    def hits(self) -> int:
        """Number of requests that the fault has hit."""
        return self._rule.hits

    def wait(self, hits: int = 1, timeout: float = 5.0) -> Waited:
        """Wait until the fault has hit a number of requests.

        Args:
            hits: Number of hits to wait for.
            timeout: Maximum seconds to wait.

        Returns:
            None; an awaitable of None in async programs.

        Raises:
            WaitTimeout: The fault has fewer hits; the message lists the most similar requests.
        """
        return self._wait(self._rule, hits, timeout)

    def disarm(self) -> None:
        """Remove the fault: it hits no further requests."""
        self._faults.disarm(self._rule)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._rule}: {self.hits} hits>"
