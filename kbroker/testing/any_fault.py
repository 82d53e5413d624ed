"""What a test says of an armed fault, whatever it hits: when, how often, and what is done to it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from .given import check_number
from .rules import Faults
from .schedule import AnyRule, Effect

R = TypeVar("R", bound=AnyRule)
Waited = TypeVar("Waited")
"""What waiting gives: None, and in an async program something to await."""


class AnyFault(Generic[R, Waited]):
    """One armed fault; what is called on it says more of it, and returns it again.

    Unless told otherwise it hits the next match, once.
    """

    def __init__(
        self, faults: Faults, rule: R, wait: Callable[[AnyRule, int, float], Waited]
    ) -> None:
        self._faults = faults
        self._rule = rule
        self._wait = wait

    # -- schedule

    def once(self) -> Self:
        """Hit the next match only."""
        return self.times(1)

    def on_call(self, number: int) -> Self:
        """Let matches pass until number `number` (from 1), and hit that one."""
        self._check("on_call", number, 1)
        self._rule.first = number
        return self

    def times(self, count: int) -> Self:
        """Hit so many matches at most; one that is hit is enough for the test to pass, and `wait`
        asks for more."""
        self._check("times", count, 1)
        self._rule.count = count
        return self

    def always(self) -> Self:
        """Hit all matching requests."""
        self._rule.count = math.inf
        return self

    def with_probability(self, probability: float, seed: int = 0) -> Self:
        """Hit each match with this probability; it may hit none."""
        self._check("probability", probability, 0, 1)
        self._rule.probability = probability
        self._rule.random = random.Random(seed)
        return self.always().optional()

    def optional(self) -> Self:
        """Do not fail the test if this fault hits nothing."""
        self._rule.may_stay_unfired = True
        return self

    # -- effect

    def disconnect(self) -> Self:
        """Close the connection."""
        return self._does(Effect.DISCONNECT)

    def delay(self, milliseconds: float) -> Self:
        """Take that much longer; later requests of the same connection wait too."""
        self._check("milliseconds", milliseconds, 0)
        return self._does(Effect.DELAY, milliseconds=milliseconds)

    def blackhole(self) -> Self:
        """Never answer, and keep the connection open."""
        return self._does(Effect.BLACKHOLE)

    def _does(self, effect: Effect, **settings: object) -> Self:
        try:
            if self._rule.effect is not Effect.PASS:
                raise ValueError(f"this is {self._rule} already; arm one more fault for the rest")
            for name, value in settings.items():
                setattr(self._rule, name, value)
            self._rule.begin_anew()
            self._rule.effect = effect
            self._check_effect()
        except ValueError:
            self.disarm()
            raise
        return self

    def _check_effect(self) -> None:
        """Refuse what could not be done to anything that is meant. Raises ValueError."""

    def _check(self, name: str, value: float, least: float, most: float = math.inf) -> None:
        try:
            check_number(name, value, least, most)
        except ValueError:
            self.disarm()
            raise

    # -- afterwards

    @property
    def hits(self) -> int:
        """How many requests it hit."""
        return self._rule.hits

    def wait(self, hits: int = 1, timeout: float = 5.0) -> Waited:
        """Wait until it has hit so many requests. Raises WaitTimeout with the near misses."""
        return self._wait(self._rule, hits, timeout)

    def disarm(self) -> None:
        """Hit nothing more."""
        self._faults.disarm(self._rule)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._rule}: {self.hits} hits>"
