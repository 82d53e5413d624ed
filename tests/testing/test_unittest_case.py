"""The base class for unittest."""

from __future__ import annotations

import threading
import unittest
from typing import Any, ClassVar

import pytest

from kbroker.testing import KafkaTestCase, LocalBroker


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


def test_each_test_has_its_own_broker() -> None:
    threads = set(threading.enumerate())
    result = run(Case("one"), Case("other"), AsyncCase("one"))
    assert (result.testsRun, result.wasSuccessful()) == (3, True), result.errors
    mine = {each for each in threading.enumerate() if not each.name.startswith("Trio thread")}
    assert mine <= threads


class CaseWithoutSuper(KafkaTestCase):
    def setUp(self) -> None:
        self.kbroker.create_topic("orders")

    def one(self) -> None:
        raise AssertionError


def test_set_up_without_super_is_named_in_error() -> None:
    result = run(CaseWithoutSuper("one"))
    ((_, message),) = result.errors
    assert "call super().setUp() first in setUp of CaseWithoutSuper" in message


def test_unfired_fault_fails_test() -> None:
    result = run(Case("unfired"))
    ((_, message),) = [*result.errors, *result.failures]
    assert "never fired" in message


class CaseWithConfig(KafkaTestCase):
    kbroker_settings: ClassVar[dict[str, Any]] = {"config": {"num.partitions": 3}}

    def one(self) -> None:
        raise AssertionError


def test_same_tests_run_against_external_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are recreated and deleted; tests with unsupported options are skipped."""
    with LocalBroker(topics={"orders": 1}) as external:
        external.produce("orders", "of an earlier run")
        monkeypatch.setenv("KBROKER_TEST_BOOTSTRAP", external.bootstrap_servers)
        result = run(Case("one"), Case("other"), Case("unfired"), CaseWithConfig("one"))
        assert external.topics() == {}
    assert (result.testsRun, len(result.skipped)) == (4, 2)
    assert result.wasSuccessful(), [*result.errors, *result.failures]


def test_unreachable_bootstrap_fails_test_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KBROKER_TEST_BOOTSTRAP", "127.0.0.1:1")
    result = run(Case("one"), Case("other"))
    ((_, message),) = result.errors
    assert "127.0.0.1:1" in message
    assert result.testsRun == 0
