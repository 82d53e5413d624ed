"""Schedule and effect of a fault rule, for any kind of request."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum


class Effect(Enum):
    """Effect of a fault on a request."""

    # The fault only counts requests.
    PASS = "pass"
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

    Attributes:
        effect: Effect on each request that the fault hits.
        after: Handle the request first, then apply the effect to the response.
        milliseconds: Delay or throttle time, in ms.
        first: Number of the first matching request to hit, from 1.
        count: Maximum number of hits.
        probability: Probability of each hit, from 0 to 1.
        random: Generator of the random numbers for `probability`.
        may_stay_unfired: Do not fail the test if the fault hits nothing.
        calls: Number of matching requests so far.
        hits: Number of hits so far.
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
        """True if the fault hits no further requests."""
        return self.hits >= self.count

    def count_match(self) -> bool:
        """Count a matching request. Return True if the fault hits the request."""
        self.calls += 1
        if self.calls < self.first or self.random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def reset_counts(self) -> None:
        """Reset the counts, which include requests that arrived before the effect was set."""
        self.calls = self.hits = 0
