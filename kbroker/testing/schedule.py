"""When a fault hits and what it does then, whatever it is that it hits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum


class Effect(Enum):
    """What a fault does."""

    PASS = "pass"
    """Nothing: the fault only counts."""
    ERROR = "error"
    DISCONNECT = "disconnect"
    DELAY = "delay"
    THROTTLE = "throttle"
    BLACKHOLE = "blackhole"
    TRUNCATE_RESPONSE = "truncate_response"
    DUPLICATE_RESPONSE = "duplicate_response"
    CORRUPT_BATCH = "corrupt_batch"
    HOOK = "hook"


@dataclass(slots=True, eq=False, kw_only=True)
class AnyRule:
    """One armed fault.

    It hits the calls from number `first` (1 is the next one that matches) on, at most `count` of
    them, each with `probability`. `after` does the work first, and then lies about it.
    `milliseconds` belong to delays and throttling.
    """

    effect: Effect = Effect.PASS
    after: bool = False
    milliseconds: float = 0
    first: int = 1
    count: float = 1
    probability: float = 1.0
    random: random.Random = field(default_factory=random.Random)
    may_stay_unfired: bool = False
    calls: int = 0
    hits: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether it hits nothing more."""
        return self.hits >= self.count

    def is_due(self) -> bool:
        """Whether a call that is meant is hit; counts it."""
        self.calls += 1
        if self.calls < self.first or self.random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def reset_counts(self) -> None:
        """Have hit nothing: what came before it was known what to do does not count."""
        self.calls = self.hits = 0
