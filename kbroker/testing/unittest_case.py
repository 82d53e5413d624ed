"""Test case class for the standard library's unittest."""

from __future__ import annotations

import os
import unittest
from typing import Any, ClassVar

from .arguments import topics_of
from .broker_thread import BrokerThread
from .external import ExternalKafka
from .external_kit import SETTLE_SECONDS
from .local import LocalBroker


class KafkaTestCase(unittest.TestCase):
    """A test case with an empty broker for each test: `self.kbroker`.

    Put this class before another base class, such as `unittest.IsolatedAsyncioTestCase`.

    Set KBROKER_TEST_BOOTSTRAP, or pytest's option --kbroker-bootstrap, to run the tests against an
    external Kafka; tests that need a broker in this process are then skipped.
    KBROKER_TEST_SETTLE_TIME, or --kbroker-settle-time, sets the seconds without a change after
    which that Kafka counts as idle.

    Attributes:
        kbroker_settings: Arguments of `LocalBroker`.
    """

    kbroker_settings: ClassVar[dict[str, Any]] = {}
    _thread: ClassVar[BrokerThread]
    _external: ClassVar[ExternalKafka | None]
    _broker: LocalBroker | ExternalKafka | None = None

    @property
    def kbroker(self) -> LocalBroker | ExternalKafka:
        """The broker of the test.

        Raises:
            RuntimeError: `setUp` of this class has not run.
        """
        if self._broker is None:
            raise RuntimeError(
                "the test has no broker: KafkaTestCase.setUp creates it; call super().setUp() first in "
                f"setUp of {type(self).__name__}"
            )
        return self._broker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._thread = BrokerThread()
        cls.addClassCleanup(cls._thread.close)
        bootstrap = os.environ.get("KBROKER_TEST_BOOTSTRAP")
        settle_seconds = float(os.environ.get("KBROKER_TEST_SETTLE_TIME", SETTLE_SECONDS))
        cls._external = None
        if bootstrap:
            cls._external = ExternalKafka(bootstrap, cls._thread, settle_seconds=settle_seconds)
            cls.addClassCleanup(cls._external.close)
            cls._external.topics()  # fail the class at once if the Kafka cannot be reached

    def setUp(self) -> None:
        super().setUp()
        if self._external is None:
            settings = self.kbroker_settings
            self._broker = self.enterContext(LocalBroker(thread=self._thread, **settings))
        else:
            self._broker = self._prepare_external(self._external)

    def _prepare_external(self, kafka: ExternalKafka) -> ExternalKafka:
        """Begin a test on an external Kafka: create the topics, and delete them after the test."""
        settings = dict(self.kbroker_settings)
        topics = topics_of(settings.pop("topics", None) or {})
        if any(settings.values()):
            self.skipTest(
                f"the test needs a broker in this process, and {kafka.bootstrap_servers} is an "
                "external Kafka"
            )
        self.enterContext(kafka.one_test())
        for name, partitions in topics.items():
            kafka.recreate_topic(name, partitions)
        return kafka
