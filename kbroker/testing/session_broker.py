"""A broker that many tests use, one after the other."""

from __future__ import annotations

from .clock import ClockStates
from .local import LocalBroker


class SessionBroker(LocalBroker):
    """One broker for all tests of a run: the data stays, what a test has armed ends with it."""

    def reset(self) -> None:
        """Be as a test expects it that knows nothing of those before.

        Faults and caps are gone, the clocks tell the real time again, the broker runs, requests
        count from 0. Clients lose their connections when a clock had to be put back.
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
