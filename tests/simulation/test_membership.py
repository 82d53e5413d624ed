"""A node's registration while the store is hard to reach."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kbroker.cluster import Cluster
from kbroker.cluster.membership import Membership
from kbroker.cluster.store import OutcomeUnknown
from kbroker.config import BrokerConfig

from .seeded import run
from .store import SharedTruth, StoreFaults

BAD = {"lost_requests": 0.3, "lost_responses": 0.3, "late_requests": 0.2, "late_events": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_node_is_ready_again_after_store_becomes_reachable(seed: int) -> None:
    async def main() -> None:
        truth = SharedTruth(Random(seed))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(truth.run)
            store = truth.client("1")
            nursery.start_soon(store.run)
            config = BrokerConfig.load(options={"node.id": "1"}, nodes=3)
            cluster = await Cluster.open(store)
            member = Membership(cluster, config, directories={}, is_clean=True, keeps_records=True)
            cluster.subscribe_nodes(member.nodes_changed)
            truth.faults = StoreFaults(**BAD, timeout_seconds=0.5)
            await _register_with_retries(member)
            nursery.start_soon(member.run)
            for _ in range(5):
                truth.cut("1")
                await trio.sleep(truth.random.uniform(0, 4))
                truth.heal("1")
                await trio.sleep(truth.random.uniform(0, 4))
            truth.faults = StoreFaults()
            await trio.sleep(10)
            assert member.is_registered
            assert cluster.registrations.ready == {1: member.epoch}
            nursery.cancel_scope.cancel()

    run(main, seed)


async def _register_with_retries(member: Membership) -> None:
    """Restart the node until it is ready."""
    while True:
        try:
            await member.register({})
            await member.become_ready()
            return
        except OutcomeUnknown:
            await trio.sleep(0.1)
