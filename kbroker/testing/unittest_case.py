"""The way in for tests of the standard library's unittest."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from .host import BrokerThread
from .local import LocalBroker


class KafkaTestCase(unittest.TestCase):
    """A test case whose tests have a fresh, empty broker each: `self.kbroker`.

    `kbroker_settings` are the parameters of `LocalBroker`. Put this class before another base, such
    as `unittest.IsolatedAsyncioTestCase`.
    """

    kbroker_settings: ClassVar[dict[str, Any]] = {}
    kbroker: LocalBroker
    _thread: ClassVar[BrokerThread]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._thread = BrokerThread()
        cls.addClassCleanup(cls._thread.close)

    def setUp(self) -> None:
        super().setUp()
        self.kbroker = self.enterContext(LocalBroker(thread=self._thread, **self.kbroker_settings))
