"""Test that a graceful stop logs no warnings or errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kbroker.cluster.local_store import LocalStore

from ..brokers import started


async def test_graceful_stop_of_several_nodes_logs_no_expired_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats continue during a controlled shutdown, which may be slow."""
    write = LocalStore._write

    async def write_slowly(store: LocalStore, line: bytes) -> None:
        await write(store, line)
        await trio.sleep(0.02)

    async with started(tmp_path, nodes=3, broker_heartbeat_interval_ms=5) as broker:
        await broker.create_topic("a")
        monkeypatch.setattr(LocalStore, "_write", write_slowly)
    assert [each.getMessage() for each in caplog.records if each.levelname != "INFO"] == []
