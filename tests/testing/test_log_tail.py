"""Separation of the log lines of several brokers."""

from __future__ import annotations

import logging

import pytest

from kbroker.protocol.errors import KafkaError
from kbroker.testing import BrokerThread, LocalBroker
from kbroker.testing.log_tail import LINES_KEPT, LogTail

logger = logging.getLogger("kbroker.some.module")


async def log_outside_brokers(broker: object) -> None:
    """Log a line in a task of the test, outside all brokers."""
    logger.warning("of a task of the test")


def test_log_tail_has_lines_of_its_context() -> None:
    one, other = LogTail(), LogTail()
    with one.collecting():
        logger.warning("first")
        with other.collecting():
            logger.warning("second %d", 2)
        for number in range(LINES_KEPT):
            logger.warning("number %d", number)
    logger.warning("of nobody")
    assert len(one.lines) == LINES_KEPT
    assert one.lines[-1].endswith(f"WARNING number {LINES_KEPT - 1}")
    assert [line.split(" ", 1)[1] for line in other.lines] == ["WARNING second 2"]
    assert not logging.getLogger("kbroker").handlers


def test_log_tails_of_brokers_in_one_thread_are_separate() -> None:
    thread = BrokerThread()
    with (
        LocalBroker(thread=thread, disk=True, topics={"t": 1}) as broken,
        LocalBroker(thread=thread, topics={"t": 1}) as sound,
    ):
        broken.disk.fail("fsync")
        with pytest.raises(KafkaError):
            broken.produce("t", "x")
        sound.run_in_broker(log_outside_brokers)
        assert "log: " in broken.report()
        assert "log: " not in sound.report()
        broken.stop()
        assert "log: " in broken.report()
    thread.close()
    assert not logging.getLogger("kbroker").handlers
