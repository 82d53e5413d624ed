"""How fast something goes, and how long to wait until that is no more than it may be.

The arithmetic is Kafka's (KIP-13, KIP-599), so that a client is held back here as it is there. Time is
an argument, in milliseconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

METERS_MAX = 10_000
"""Of one kind: about 10 MB of rates."""


class Windows(NamedTuple):
    """Over how long a rate is measured: `number` windows of `size_ms`, of which the last one is not
    over yet."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        """How long what was counted counts."""
        return self.number * self.size_ms


class _Window:
    """What was counted in one window."""

    __slots__ = ("began_ms", "counted_at_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.value = 0.0
        self.began_ms = self.counted_at_ms = now_ms


class Rate:
    """What goes per second, over the last windows.

    A window begins with what is counted, so that a time in which nothing is counted has none. It is
    forgotten when the last thing in it is older than all windows together: therefore there is one
    more than they are. Who has just begun is taken for one who had been silent for all windows but
    the last: so it may go faster for a moment.
    """

    __slots__ = ("_kept", "_latest", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._kept: list[_Window] = []
        self._latest = 0

    def count(self, value: float, now_ms: int) -> None:
        """Something has gone; a value below zero takes it back."""
        window = self._window(now_ms)
        window.value += value
        window.counted_at_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """The rate now."""
        self._forget_old(now_ms)
        return sum(each.value for each in self._kept) * 1000 / self._elapsed_ms(now_ms)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """After how long without anything else the rate is at `limit`, in milliseconds; 0 if it is
        not above it.

        Of a rate O that is to be T over W it is the X in O * W / (W + X) = T.
        """
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return math.floor((rate - limit) / limit * self._elapsed_ms(now_ms) + 0.5)

    def is_over(self, now_ms: int) -> bool:
        """Whether nothing counts any more of what was counted."""
        if not self._kept:
            return True
        return now_ms - self._kept[self._latest].counted_at_ms >= self._windows.span_ms

    def _window(self, now_ms: int) -> _Window:
        """The one that is open, or another one."""
        kept = self._kept
        if not kept:
            kept.append(_Window(now_ms))
        elif now_ms - kept[self._latest].began_ms >= self._windows.size_ms:
            self._latest = (self._latest + 1) % (self._windows.number + 1)
            if self._latest == len(kept):
                kept.append(_Window(now_ms))
            else:
                kept[self._latest].reset(now_ms)
        return kept[self._latest]

    def _forget_old(self, now_ms: int) -> None:
        for window in self._kept:
            if now_ms - window.counted_at_ms >= self._windows.span_ms:
                window.reset(now_ms)

    def _elapsed_ms(self, now_ms: int) -> int:
        """The time that what counts is divided by: whole windows at least, all but the last."""
        size_ms = self._windows.size_ms
        began_ms = min((each.began_ms for each in self._kept), default=now_ms)
        elapsed_ms = now_ms - began_ms
        missing = self._windows.number - 1 - elapsed_ms // size_ms
        return max(elapsed_ms + max(missing, 0) * size_ms, 1)


class TokenBucket:
    """Leave for single large things: a bucket that fills at a rate, up to what comes in all windows.

    Who finds anything in it may take as much as it likes, and owes what was not there (KIP-599).
    """

    __slots__ = ("_filled_at_ms", "_rate", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = math.inf
        self._filled_at_ms = 0
        self._rate = 0.0

    def take(self, count: float, rate: float, now_ms: int) -> None:
        """Take tokens, of which `rate` come per second."""
        self._fill(rate, now_ms)
        self._tokens -= count

    def wait_ms(self, rate: float, now_ms: int) -> int:
        """After how long nothing is owed any more, in milliseconds; 0 if nothing is."""
        self._fill(rate, now_ms)
        return math.floor(max(-self._tokens, 0) / rate * 1000 + 0.5)

    def is_over(self, now_ms: int) -> bool:
        """Whether the bucket is full."""
        self._fill(self._rate, now_ms)
        return self._tokens >= self._size

    @property
    def _size(self) -> float:
        return self._windows.span_ms / 1000 * self._rate

    def _fill(self, rate: float, now_ms: int) -> None:
        self._rate = rate
        seconds = (now_ms - self._filled_at_ms) / 1000
        self._tokens = min(self._tokens + rate * seconds, self._size)
        self._filled_at_ms = now_ms


class Meter(Protocol):
    """What is kept of one who is measured."""

    def is_over(self, now_ms: int) -> bool:
        """Whether it would be the same if it were made anew."""
        ...


M = TypeVar("M", bound=Meter)


class Meters(Generic[M]):
    """Meters of many, of whom nobody knows how many there will be.

    One that is over is forgotten, and of more than `METERS_MAX` that which was used longest ago:
    whoever makes up names costs no memory.

    Parameters: `make` makes one.
    """

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._used: OrderedDict[Hashable, M] = OrderedDict()
        """The one that was used last stands last."""

    def __len__(self) -> int:
        return len(self._used)

    def of(self, key: Hashable, now_ms: int) -> M:
        """The meter of one; it is made if there is none."""
        meter = self._used.get(key)
        if meter is None:
            meter = self._used[key] = self._make()
            self._forget(key, now_ms)
        else:
            self._used.move_to_end(key)
        return meter

    def _forget(self, newest: Hashable, now_ms: int) -> None:
        """For each that comes, at most two that are over, and one that has to make way."""
        for _ in range(2):
            oldest, meter = next(iter(self._used.items()))
            if oldest == newest:
                return
            if not meter.is_over(now_ms) and len(self._used) <= METERS_MAX:
                return
            del self._used[oldest]
