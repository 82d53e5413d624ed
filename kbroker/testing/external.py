"""An external Kafka cluster, for synchronous code."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import SkipTest

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint

from .broker_thread import BrokerThread, OpenResource
from .external_kit import SETTLE_SECONDS, ExternalKit
from .kit import CLIENT_ID, WAIT_SECONDS
from .local import KafkaHandle, LocalBroker
from .real_clock import RealClock


class ExternalKafka(KafkaHandle):
    """An external Kafka cluster.

    Features that only `LocalBroker` has, such as faults and clocks, skip the test that uses them.

    Args:
        bootstrap: HOST[:PORT], with commas between several; the default port is 9092.
        thread: Thread to run in; None creates one.
        settle_seconds: Seconds without a change after which the cluster counts as idle.

    Raises:
        ValueError: `bootstrap` is not a list of HOST[:PORT].
    """

    def __init__(
        self,
        bootstrap: str,
        thread: BrokerThread | None = None,
        *,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._settle_seconds = settle_seconds
        self._own_thread = thread is None
        self._thread = thread or BrokerThread()
        try:
            self._held: OpenResource[ExternalKit] = self._thread.open_resource(self._open)
        except BaseException:
            if self._own_thread:
                self._thread.close()
            raise

    @property
    def _kit(self) -> ExternalKit:
        return self._held.value

    @property
    def bootstrap_servers(self) -> str:
        return self._bootstrap

    def __getattr__(self, name: str) -> Any:
        if hasattr(LocalBroker, name) or name in LocalBroker.__annotations__:
            raise SkipTest(
                f"`{name}` needs a broker in this process, and {self._bootstrap} is an external Kafka"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[ExternalKit]:
        endpoints = Endpoint.parse_bootstrap(self._bootstrap)
        async with open_cluster(endpoints, CLIENT_ID) as cluster:
            yield ExternalKit(cluster, RealClock().log_ms, self._settle_seconds)

    def begin_test(self) -> None:
        """Begin a test: existing topics, groups and records do not belong to it.

        Raises:
            KafkaError: The cluster rejects a request.
            ClientError: The cluster cannot be reached.
        """
        self._call(self._kit.begin_test)
        self._unawaited.clear()
        self._remember_log_ends()

    @contextlib.contextmanager
    def one_test(self) -> Iterator[None]:
        """Run a test in the block, and clean up after it; see `ExternalKit.end_test`."""
        self.begin_test()
        try:
            yield
        finally:
            self._call(self._kit.end_test)

    def recreate_topic(self, name: str, partitions: int) -> None:
        """Create an empty topic, and delete an existing topic of that name first.

        Args:
            name: Topic name.
            partitions: Number of partitions.

        Raises:
            KafkaError: The cluster rejects a request.
        """
        self._call(self._kit.recreate_topic, name, partitions)
        self._known.forget(name)

    def expect_nothing(self, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the cluster is idle, then check that a topic has no unexpected record.

        See `KafkaHandle.expect_nothing`, and `ExternalKit.wait_until_idle` for what idle means.
        """
        self._kit.track_topic(topic)
        super().expect_nothing(topic, timeout)

    def close(self) -> None:
        """Close the connections.

        In a forked child, this method does nothing, because the connections belong to the parent.
        """
        if not self._thread.running:
            return
        try:
            self._thread.release_resource(self._held)
        finally:
            if self._own_thread:
                self._thread.close()
