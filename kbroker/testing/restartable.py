"""A broker in a thread that stops, crashes and starts again on the same port."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kbroker.net.server import Listener
from kbroker.storage.crash_files import Mode

from .async_broker import CRASHED, STOPPED, RunningBroker, failure_reason
from .broker_thread import BrokerThread, OpenResource
from .disk import PowerCut
from .kit import POLL_SECONDS, WaitTimeout
from .real_time import steady_seconds
from .stores import BreakableStore, Store, has_crashed


class RestartableBroker:
    """The runs of one broker, one after the other.

    Args:
        open_run: Opens the next run. The keyword arguments are `listeners`, `nodes`, `listeners_of`
            (by node ID) and `earlier` (the previous run).
        store: Store of the data between the runs.
        thread: Thread of the broker.
        listeners: Listeners of the first run; later runs use the same ports.
        nodes: Number of nodes of the first run; None for the number of nodes in the store, or one if
            it is empty.
    """

    def __init__(
        self,
        open_run: Callable[..., contextlib.AbstractAsyncContextManager[RunningBroker]],
        store: Store,
        thread: BrokerThread,
        listeners: Sequence[Listener],
        nodes: int | None,
    ) -> None:
        self._open_run = open_run
        self._store = store
        self._thread = thread
        # Listeners of the first node.
        self.listeners = listeners
        self._nodes = nodes
        self._listeners_of: Mapping[int, Sequence[Listener]] = {}
        # Addresses for clients; empty before the first start.
        self.bootstrap_servers = ""
        # The current run; None if the broker is stopped.
        self.held: OpenResource[RunningBroker] | None = None
        # The run that was started last.
        self.latest: RunningBroker | None = None
        self._is_restarting = False
        self._crash_handled = False

    @property
    def running(self) -> RunningBroker:
        """The broker in its thread.

        Raises:
            RuntimeError: The broker is stopped, has failed or has crashed.
        """
        if has_crashed(self._store):
            raise RuntimeError(CRASHED)
        held = self.held
        if held is not None and held.failure is not None:
            raise RuntimeError(failure_reason(held.failure))
        if held is None or held.closed.is_set():
            raise RuntimeError(STOPPED)
        return held.value

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the broker; None if it runs, was stopped or has crashed."""
        if self.held is None or has_crashed(self._store):
            return None
        return self.held.failure

    @property
    def watched(self) -> RunningBroker:
        """The broker that waits observe; during a restart, the previous run.

        Raises:
            RuntimeError: The broker is stopped, has failed or has crashed.
        """
        if self._is_restarting and self.latest is not None:
            return self.latest
        return self.running

    # -- start and stop

    def start(self) -> None:
        """Start on the same port as before; do nothing if the broker runs."""
        if has_crashed(self._store):
            self.end()
            self.power_on()
        elif self.failure is not None:
            with contextlib.suppress(Exception):  # `running` has reported the failure
                self.end()
        if self.held is not None:
            return
        with self.may_crash():
            self.held = self._open_on_new_port()
            self.latest = self.held.value
            broker = self.latest.broker
            self.bootstrap_servers = broker.bootstrap_servers
            self.listeners = broker.nodes[0].listeners
            if isinstance(self._store, BreakableStore):
                cluster = broker.node.cluster
                self._store.disk.has_partition = lambda topic, index: (
                    cluster.partition(topic, index) is not None
                )

    def _open_on_new_port(self) -> OpenResource[RunningBroker]:
        """Open a run on a port that no recent broker has used.

        Clients of a recent broker may still try to connect to its port.
        """
        while True:
            held = self._thread.open_resource(self._open, _close_listeners)
            port = held.value.broker.endpoint.port
            if self.listeners[0].port or port not in self._thread.ports:
                self._thread.ports.append(port)
                return held
            self._thread.release_resource(held)

    def _open(self) -> contextlib.AbstractAsyncContextManager[RunningBroker]:
        return self._open_run(
            listeners=self.listeners,
            nodes=self._nodes,
            listeners_of=self._listeners_of,
            earlier=self.latest,
        )

    def stop(self) -> None:
        """Stop the broker, and fail all waits with RuntimeError."""
        try:
            self.end()
        finally:
            self._fail_waits(STOPPED)

    def end(self) -> None:
        """Stop the broker; waits continue after the next start."""
        if self.held is None:
            return
        nodes = self.held.value.broker.nodes
        self._nodes = len(nodes)
        self._listeners_of = {each.id: each.listeners for each in nodes}
        try:
            with self.may_crash():
                self._thread.release_resource(self.held)
        finally:
            self.held = None

    @contextlib.contextmanager
    def restarting(self) -> Iterator[None]:
        """Pause waits during the block, and start the broker after it.

        If the block fails before it ends the broker, waits continue.
        """
        self._is_restarting = True
        try:
            yield
            self.start()
        except BaseException:
            if not self._is_up:
                self._fail_waits(CRASHED if has_crashed(self._store) else STOPPED)
            raise
        finally:
            self._is_restarting = False

    @property
    def _is_up(self) -> bool:
        held = self.held
        return held is not None and not held.closed.is_set() and not has_crashed(self._store)

    def _fail_waits(self, reason: str) -> None:
        """Fail all waits: the broker does not start again by itself."""
        latest = self.latest
        if latest is not None and self._thread.running:

            async def fail() -> None:
                latest.availability.mark_closed(reason)

            self._thread.call(fail)

    # -- crashes

    @property
    def breakable(self) -> BreakableStore:
        """The store whose disk can fail.

        Raises:
            ValueError: The broker has no such disk.
        """
        if isinstance(self._store, BreakableStore):
            return self._store
        raise ValueError(
            "this broker has no disk that can fail; create it with disk=True, or --faulty-disk"
        )

    @contextlib.contextmanager
    def may_crash(self) -> Iterator[None]:
        """Suppress exceptions of the block if the broker has crashed in it."""
        try:
            yield
        except (PowerCut, Exception):
            if not has_crashed(self._store):
                raise

    def crash_at(self, point: str, mode: Mode, seed: int) -> None:
        """Cut the power when the broker reaches a point.

        Raises:
            ValueError: The point or mode does not exist, or the broker has no such disk.
        """
        self._crash_handled = False
        self.breakable.disk.crash_at(point, mode, seed)

    def wait_for_crash(self, timeout: float) -> None:
        """Wait for the crash that `crash_at` has requested, then start again on the same port.

        Args:
            timeout: Maximum seconds to wait.

        Raises:
            ValueError: The broker has no disk that can fail.
            WaitTimeout: The broker has not reached the point.
            RuntimeError: The broker is stopped, or has failed for another reason.
        """
        _ = self.breakable
        deadline = steady_seconds() + timeout
        while not self._has_crashed:
            left = deadline - steady_seconds()
            if left < 0 or not (self._wait_for_end(left) or self._has_crashed):
                raise WaitTimeout(f"waited {timeout:g} s for a crash: {self._missing_crash}")
        if not self._crash_handled:
            with self.restarting():
                pass
        self._crash_handled = False

    @property
    def _missing_crash(self) -> str:
        """The reason why there was no crash."""
        crash_point = self.breakable.disk.faults.crash_point
        if crash_point is None:
            return "no crash was requested; call crash_at() first"
        return (
            f"the broker did not reach the point {crash_point.point!r}; check that the test runs an "
            "operation that reaches it"
        )

    @property
    def _has_crashed(self) -> bool:
        """True if a crash waits to be handled by `wait_for_crash`."""
        return self._crash_handled or has_crashed(self._store)

    def _wait_for_end(self, timeout: float) -> bool:
        """Wait until the broker has ended, and return False after the timeout.

        During a restart, return True after `POLL_SECONDS`.

        Raises:
            RuntimeError: The broker is stopped or has failed, so that it cannot crash.
        """
        held = self.held
        if self.failure is not None:
            raise RuntimeError(failure_reason(self.failure))
        if held is not None and not held.closed.is_set():
            return self._thread.wait_for_end(held, timeout)
        if held is None and not self._is_restarting:
            raise RuntimeError(STOPPED)
        time.sleep(POLL_SECONDS)
        return True

    def power_cut(self, mode: Mode, seed: int) -> None:
        """Cut the power now, then start again on the same port. Waits continue."""
        disk, had_crashed = self.breakable.disk, self._has_crashed
        with self.restarting():
            disk.cut(mode, seed)
            if self.held is not None:
                self._thread.abort(self.held)
        self._crash_handled = had_crashed  # wait_for_crash() waits for crash_at(), not for this cut

    def power_on(self) -> None:
        """Replace the disk by its state after the power cut."""
        self.breakable.disk = self.breakable.disk.restarted()
        self._crash_handled = True


def _close_listeners(running: RunningBroker) -> None:
    """Free the ports in a forked child, so that the parent can stop and start the broker."""
    for node in running.broker.nodes:
        node.server.close_after_fork()
