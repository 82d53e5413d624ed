"""The way in for tests of the standard library's unittest."""

from __future__ import annotations

import os
import unittest
from typing import Any, ClassVar

from .external import ExternalKafka
from .given import topics_of
from .host import BrokerThread
from .local import LocalBroker
from .outside import SETTLE_SECONDS


class KafkaTestCase(unittest.TestCase):
    """A test case whose tests have a fresh, empty broker each: `self.kbroker`.

    `kbroker_settings` are the parameters of `LocalBroker`. Put this class before another base, such
    as `unittest.IsolatedAsyncioTestCase`. With the address of a Kafka in KBROKER_TEST_BOOTSTRAP, or
    in pytest's option --kbroker-bootstrap, the tests run against that one; those that need a broker
    of their own are skipped. KBROKER_TEST_SETTLE_TIME, or --kbroker-settle-time, says for how many
    seconds nothing may change in it before it counts as idle.
    """

    kbroker_settings: ClassVar[dict[str, Any]] = {}
    kbroker: LocalBroker | ExternalKafka
    _thread: ClassVar[BrokerThread]
    _external: ClassVar[ExternalKafka | None]

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
            cls._external.topics()  # if nobody answers there, no test has to find out

    def setUp(self) -> None:
        super().setUp()
        if self._external is None:
            settings = self.kbroker_settings
            self.kbroker = self.enterContext(LocalBroker(thread=self._thread, **settings))
        else:
            self.kbroker = self._prepared(self._external)

    def _prepared(self, kafka: ExternalKafka) -> ExternalKafka:
        """It has the topics of the settings, empty; what a test makes is deleted at its end."""
        settings = dict(self.kbroker_settings)
        topics = topics_of(settings.pop("topics", None) or {})
        if any(settings.values()):
            self.skipTest(f"it needs a broker of its own, and {kafka.bootstrap_servers} is not one")
        self.enterContext(kafka.one_test())
        for name, partitions in topics.items():
            kafka.recreate_topic(name, partitions)
        return kafka
