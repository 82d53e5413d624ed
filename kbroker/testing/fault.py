"""A fault as a test arms it: a sentence of what, when and how often."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .rules import Effect, Faults, Hook, Rule, Target


class Fault:
    """One armed fault; what is called on it says more of it, and returns it again.

    Unless told otherwise it hits the next matching request, once.
    """

    def __init__(self, faults: Faults, rule: Rule, wait: Callable[[Rule, int, float], None]):
        self._faults = faults
        self._rule = rule
        self._wait = wait

    # -- schedule

    def once(self) -> Fault:
        """Hit the next matching request only."""
        return self.times(1)

    def on_call(self, number: int) -> Fault:
        """Let matching requests pass until number `number` (from 1), and hit that one."""
        self._rule.first = number
        return self

    def times(self, count: int) -> Fault:
        """Hit so many matching requests."""
        self._rule.count = count
        return self

    def every_time(self) -> Fault:
        """Hit all matching requests."""
        self._rule.count = math.inf
        return self

    def with_probability(self, probability: float, seed: int = 0) -> Fault:
        """Hit each matching request with this probability; it may hit none."""
        self._rule.probability = probability
        self._rule.random = random.Random(seed)
        return self.every_time().maybe()

    def maybe(self) -> Fault:
        """A test may pass without this one having hit anything."""
        self._rule.may_stay_unfired = True
        return self

    # -- effect

    def disconnect(self) -> Fault:
        """Close the connection."""
        return self._does(Effect.DISCONNECT)

    def delay(self, milliseconds: float) -> Fault:
        """Take that much longer; later requests of the same connection wait too."""
        return self._does(Effect.DELAY, milliseconds=milliseconds)

    def throttle(self, milliseconds: float) -> Fault:
        """Answer, and tell the client to pause (KIP-219)."""
        return self._does(Effect.THROTTLE, milliseconds=milliseconds)

    def blackhole(self) -> Fault:
        """Never answer, and keep the connection open."""
        return self._does(Effect.BLACKHOLE)

    def half_frame(self) -> Fault:
        """Send the first half of the answer, then close."""
        return self._does(Effect.HALF_FRAME)

    def answer_twice(self) -> Fault:
        """Send the answer two times."""
        return self._does(Effect.ANSWER_TWICE)

    def corrupt_batch(self, bit: int = 0) -> Fault:
        """Flip a bit of the records that a Produce brings or a Fetch gets, counted from the end of
        the batch's header."""
        return self._does(Effect.CORRUPT_BATCH, bit=bit)

    def _does(self, effect: Effect, **settings: Any) -> Fault:
        self._rule.effect = effect
        for name, value in settings.items():
            setattr(self._rule, name, value)
        return self

    # -- afterwards

    @property
    def hits(self) -> int:
        """How many requests it hit."""
        return self._rule.hits

    def wait(self, hits: int = 1, timeout: float = 5.0) -> None:
        """Wait until it has hit so many requests. Raises WaitTimeout with the near misses."""
        self._wait(self._rule, hits, timeout)

    def disarm(self) -> None:
        """Hit nothing more."""
        self._faults.disarm(self._rule)

    def __repr__(self) -> str:
        return f"<Fault {self._rule}: {self.hits} hits>"


def new_rule(
    api: str | None,
    *,
    error: str | int | None = None,
    at: str = "before",
    versions: range | int | None = None,
    hook: Hook | None = None,
    **criteria: Any,
) -> Rule:
    """The rule that the words of a test mean. Raises ValueError, with what there is instead."""
    if at not in ("before", "after"):
        raise ValueError(f"at={at!r}: a fault comes before or after the work")
    if isinstance(versions, int):
        versions = range(versions, versions + 1)
    target = Target(api=None if api is None else api_key(api), versions=versions, **criteria)
    rule = Rule(target, after=at == "after")
    if hook is not None:
        rule.effect, rule.hook = Effect.HOOK, hook
    elif error is not None:
        rule.effect, rule.code = Effect.ERROR, error_named(error)
    return rule


def api_key(name: str) -> ApiKey:
    """The API that a test names as Kafka does: "Produce", or "PRODUCE". Raises ValueError."""
    plain = name.replace("_", "").lower()
    for key in ApiKey:
        if key.api_name.lower() == plain:
            return key
    raise ValueError(f"there is no API {name!r}{_close(name, [key.api_name for key in ApiKey])}")


def error_named(name: str | int) -> ErrorCode:
    """The error of this name or number. Raises ValueError."""
    if isinstance(name, int):
        return ErrorCode(name)
    try:
        return ErrorCode[name.upper()]
    except KeyError:
        known = [code.name for code in ErrorCode]
        raise ValueError(f"there is no error {name!r}{_close(name.upper(), known)}") from None


def _close(name: str, known: list[str]) -> str:
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
