"""Measurement of rates, and throttle times to keep a rate within a quota.

The arithmetic is Kafka's (KIP-13, KIP-599), so that clients are throttled as in Kafka. Times are
arguments, in milliseconds of any monotonic clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

# Maximum number of meters of one kind (about 10 MB of rates).
METERS_MAX = 10_000


class Windows(NamedTuple):
    """Time over which a rate is measured: `number` windows of `size_ms`; the last one is open."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        """Milliseconds for which a value counts."""
        return self.number * self.size_ms


class _Window:
    """Sum of the values in one window."""

    __slots__ = ("began_ms", "counted_at_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.value = 0.0
        self.began_ms = self.counted_at_ms = now_ms


class Rate:
    """Rate per second, over the last windows.

    A window begins with its first value, so there are no windows for idle times. A window expires
    when its last value is older than all windows together, so one more window than `Windows.number`
    is kept. A new rate is treated as if all windows but the last were idle, so it may exceed the
    limit for a moment.
    """

    __slots__ = ("_kept", "_latest", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._kept: list[_Window] = []
        self._latest = 0

    def count(self, value: float, now_ms: int) -> None:
        """Add a value; a negative value takes back an earlier one."""
        window = self._window(now_ms)
        window.value += value
        window.counted_at_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """Return the current rate."""
        self._forget_old(now_ms)
        return sum(each.value for each in self._kept) * 1000 / self._elapsed_ms(now_ms)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return the milliseconds until the rate falls to `limit` if nothing is added.

        0 if the rate is not above the limit. For a rate O that should be T over W, the result is
        the X in O * W / (W + X) = T.
        """
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return math.floor((rate - limit) / limit * self._elapsed_ms(now_ms) + 0.5)

    def is_expired(self, now_ms: int) -> bool:
        """Return True if all values have expired."""
        if not self._kept:
            return True
        return now_ms - self._kept[self._latest].counted_at_ms >= self._windows.span_ms

    def _window(self, now_ms: int) -> _Window:
        """Return the open window, or open a new one."""
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
        """Return the time to divide by: at least all windows but the last, in whole windows."""
        size_ms = self._windows.size_ms
        began_ms = min((each.began_ms for each in self._kept), default=now_ms)
        elapsed_ms = now_ms - began_ms
        missing = self._windows.number - 1 - elapsed_ms // size_ms
        return max(elapsed_ms + max(missing, 0) * size_ms, 1)


class TokenBucket:
    """Bucket of tokens that fills at a rate, up to the amount of all windows.

    If the bucket has any tokens, any number may be taken. The missing tokens are owed (KIP-599).
    """

    __slots__ = ("_filled_at_ms", "_rate", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = math.inf
        self._filled_at_ms = 0
        self._rate = 0.0

    def take(self, count: float, rate: float, now_ms: int) -> None:
        """Take tokens; `rate` is the number of tokens that are added per second."""
        self._fill(rate, now_ms)
        self._tokens -= count

    def wait_ms(self, rate: float, now_ms: int) -> int:
        """Return the milliseconds until no tokens are owed; 0 if no tokens are owed now."""
        self._fill(rate, now_ms)
        return math.floor(max(-self._tokens, 0) / rate * 1000 + 0.5)

    def is_expired(self, now_ms: int) -> bool:
        """Return True if the bucket is full."""
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
    """Measurement of one client or other key."""

    def is_expired(self, now_ms: int) -> bool:
        """Return True if a new meter would have the same state."""
        ...


M = TypeVar("M", bound=Meter)


class Meters(Generic[M]):
    """Meters by key, for an unbounded number of keys.

    Expired meters are removed. If there are more than `METERS_MAX`, the least recently used
    one is removed, so clients that invent names cannot exhaust memory.

    Args:
        make: Creates a meter.
    """

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        # Meters by key, the most recently used one last.
        self._used: OrderedDict[Hashable, M] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def of(self, key: Hashable, now_ms: int) -> M:
        """Return the meter of a key; create it if it does not exist."""
        meter = self._used.get(key)
        if meter is None:
            meter = self._used[key] = self._make()
            self._forget(key, now_ms)
        else:
            self._used.move_to_end(key)
        return meter

    def _forget(self, newest: Hashable, now_ms: int) -> None:
        """Remove up to two expired meters, or the oldest if there are too many."""
        for _ in range(2):
            oldest, meter = next(iter(self._used.items()))
            if oldest == newest:
                return
            if not meter.is_expired(now_ms) and len(self._used) <= METERS_MAX:
                return
            del self._used[oldest]
