"""Brokers in this process, in memory and on disk, and connections to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.config import BrokerConfig
from kbroker.server import Listener

from ..wire import Wire, connected

LOOPBACK = Listener("PLAINTEXT", "127.0.0.1", 0)

Start: TypeAlias = Callable[..., AbstractAsyncContextManager[Broker]]


@asynccontextmanager
async def started(
    data_dir: str | Path | None = None, **properties: object
) -> AsyncIterator[Broker]:
    """A broker on a free port; settings as keywords with `_` for the dots of their names.

    At the end nothing unexpected may have happened in it.
    """
    options = {name.replace("_", "."): _text(value) for name, value in properties.items()}
    async with open_broker(
        BrokerConfig.load(options=options),
        data_dir=None if data_dir is None else str(data_dir),
        listeners=[LOOPBACK],
    ) as broker:
        yield broker
        assert broker.node.unhandled_errors == 0


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture(params=["memory", "disk"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Opens brokers; each test that uses it runs in memory and on disk."""
    folder = None if request.param == "memory" else tmp_path / "data"

    def open_one(**properties: object) -> AbstractAsyncContextManager[Broker]:
        return started(folder, **properties)

    return open_one


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker in memory."""
    async with started() as opened:
        yield opened


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    """A connection to `broker`."""
    async with connected(broker.endpoint) as opened:
        yield opened
