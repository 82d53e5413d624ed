"""Brokers in this process, in memory and on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from kbroker.broker import Broker, open_broker
from kbroker.config import BrokerConfig
from kbroker.handlers.context import Context
from kbroker.net.server import Listener
from kbroker.protocol.api_keys import ApiKey
from kbroker.runtime.clock import Clock
from kbroker.storage.files import Files

LOOPBACK = Listener("PLAINTEXT", "localhost", 0)

Start: TypeAlias = Callable[..., AbstractAsyncContextManager[Broker]]


@asynccontextmanager
async def started(
    data_dir: str | Path | list[Path] | None = None,
    clock: Clock | None = None,
    /,
    *,
    nodes: int | None = None,
    **properties: object,
) -> AsyncIterator[Broker]:
    """Start a broker on a free port; keyword arguments are settings with `_` for each dot.

    Timeouts are long, because a test may open a connection long before its first request on a busy
    machine. At the end, the function checks that the broker had no unexpected errors.
    """
    properties = {"connection_setup_timeout_ms": 3_600_000, **properties}
    options = {name.replace("_", "."): _text(value) for name, value in properties.items()}
    async with open_broker(
        BrokerConfig.load(options=options),
        data_dir=paths_of(data_dir),
        listeners=[LOOPBACK],
        nodes=nodes,
        clock=clock,
    ) as broker:
        yield broker
        assert [each.node.context.error_log.unhandled_errors for each in broker.nodes] == [0] * len(
            broker.nodes
        )


@asynccontextmanager
async def started_on(
    files: Files, data_dir: str | list[str], *, nodes: int = 1, **properties: str
) -> AsyncIterator[Broker]:
    """Start a broker like `started`, with its data directories on the test's disk."""
    options = {name.replace("_", "."): value for name, value in properties.items()}
    async with open_broker(
        BrokerConfig.load(options=options),
        data_dir=data_dir,
        listeners=[LOOPBACK],
        nodes=nodes,
        files=files,
    ) as broker:
        yield broker
        assert [each.node.context.error_log.unhandled_errors for each in broker.nodes] == [0] * len(
            broker.nodes
        )


def replace_handler(broker: Broker, key: ApiKey, handler: Callable[[Context, Any], Any]) -> None:
    """Let `handler` process an API on the first node, for connections opened from now on."""
    apis = broker.server._apis
    broker.server._apis = {**apis, key: apis[key]._replace(handler=handler)}


def paths_of(data_dir: str | Path | list[Path] | None) -> str | list[str] | None:
    if isinstance(data_dir, list):
        return [str(each) for each in data_dir]
    return None if data_dir is None else str(data_dir)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
