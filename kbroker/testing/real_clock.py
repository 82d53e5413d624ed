"""A broker's clock that shows real time, even if a test replaces the clocks of its process."""

from __future__ import annotations

from kbroker.runtime.clock import SystemClock

from .real_time import steady_ns, wall_ns

_NS_PER_MS = 1_000_000


class RealClock(SystemClock):
    """Real time, as a `kbroker.runtime.clock.Clock`."""

    def log_ms(self) -> int:
        return wall_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        return steady_ns() // _NS_PER_MS
