"""Test of a process stall that is longer than a session: sessions must not expire."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from ..brokers import started

# Longer than broker.session.timeout.ms.
STALL_SECONDS = 2


async def test_process_stall_elects_no_leader(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        cluster = broker.node.cluster
        assert broker.node.config.broker_session_timeout_ms < STALL_SECONDS * 1000
        before = {each.node_id: each.epoch for each in cluster.nodes.values()}
        assert len(before) == 3
        time.sleep(STALL_SECONDS)  # noqa: ASYNC251  (stalls all tasks on purpose)
        await trio.sleep(0.3)
        assert {each.node_id: each.epoch for each in cluster.nodes.values()} == before
        assert len(cluster.ready_ids) == 3
