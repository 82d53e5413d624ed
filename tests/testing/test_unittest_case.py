"""The base class for unittest."""

from __future__ import annotations

import threading
import unittest
from typing import Any, ClassVar

from kbroker.testing import KafkaTestCase


def run(*cases: unittest.TestCase) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.TestSuite(cases).run(result)
    return result


class Case(KafkaTestCase):
    kbroker_settings: ClassVar[dict[str, Any]] = {"topics": {"orders": 3}}

    def one(self) -> None:
        assert self.kbroker.topics() == {"orders": 3}
        self.kbroker.create_topic("more")

    def other(self) -> None:
        self.one()

    def unfired(self) -> None:
        self.kbroker.fault("Produce")


class AsyncCase(KafkaTestCase, unittest.IsolatedAsyncioTestCase):
    async def one(self) -> None:
        assert self.kbroker.topics() == {}


def test_each_test_has_a_broker_of_its_own() -> None:
    threads = set(threading.enumerate())
    result = run(Case("one"), Case("other"), AsyncCase("one"))
    assert (result.testsRun, result.wasSuccessful()) == (3, True), result.errors
    mine = {each for each in threading.enumerate() if not each.name.startswith("Trio thread")}
    assert mine <= threads


def test_a_fault_that_never_fired_fails() -> None:
    result = run(Case("unfired"))
    ((_, message),) = [*result.errors, *result.failures]
    assert "never fired" in message
