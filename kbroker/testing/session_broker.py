"""A broker that the tests of a run use one after the other."""

from __future__ import annotations

from .async_broker import failure_reason
from .clock import ClockStates
from .local import LocalBroker


class SessionBroker(LocalBroker):
    """One broker for all tests of a run: the data is kept, faults and clocks are reset."""

    def reset(self) -> None:
        """Prepare the broker for the next test.

        Faults and version limits are removed, clocks are reset to the real time, and request counts
        are reset to 0. A stopped broker is started. If a clock was moved, the broker is restarted,
        which closes the connections of clients. A broker that has failed is started again.

        Raises:
            RuntimeError: The broker has failed during the test.
        """
        failure = self._life.failure
        self.disarm_faults()
        self._unawaited.clear()
        if self.clock.movable.states() != ClockStates():
            if failure is None:
                self.stop()
            self.clock.movable.restore_state(ClockStates())
        self.start()
        if self.faults.limits:
            self.cap_versions(None)
        self.faults.clear_history()
        self._remember_log_ends()
        if failure is not None:
            raise RuntimeError(failure_reason(failure)) from failure
