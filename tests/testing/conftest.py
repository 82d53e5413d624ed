"""Fixtures of the tests of the test kit."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Iterator

import pytest

from kbroker.testing import RunningBroker, open_test_broker

from ..wire import Wire, connected


@pytest.fixture(autouse=True)
def _sockets_of_the_client_are_collected() -> Iterator[None]:
    """Collect sockets that kafka-python leaves open when a connection breaks while it connects.

    Otherwise the warnings would appear in a later, unrelated test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with open_test_broker(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
async def wire(broker: RunningBroker) -> AsyncIterator[Wire]:
    async with connected(broker.broker.endpoint) as wire:
        yield wire
