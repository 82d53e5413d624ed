"""A broker that the tests of a run use one after the other."""

from __future__ import annotations

from .clock import ClockStates
from .local import LocalBroker


class SessionBroker(LocalBroker):
    """One broker for all tests of a run: the data is kept, faults and clocks are reset."""

    def reset(self) -> None:
        """Prepare the broker for the next test.

        Faults and version limits are removed, clocks show the real time, the broker runs, and
        requests are counted from 0. If a clock was moved, the broker restarts, so clients lose
        their connections.
        """
        self.disarm_faults()
        self._unawaited.clear()
        if self.clock.movable.states() != ClockStates():
            self.stop()
            self.clock.movable.restore_state(ClockStates())
        self.start()
        if self.faults.limits:
            self.cap_versions(None)
        self.faults.forget()
        self._begin()
