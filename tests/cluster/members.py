"""Nodes without logs on one metadata store: membership and controller only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from kbroker.cluster import Cluster, IsrChange, LocalStore, MetadataStore, Partition
from kbroker.cluster.controller import Controller
from kbroker.cluster.membership import Membership
from kbroker.config import BrokerConfig
from kbroker.storage.files import MemFiles

DIRECTORIES = {"a-directory": "/data"}
TOPIC = "orders"


class Member:
    """One node; `keeps_records` simulates a flush policy that waits for the disk.

    Without a nursery it runs no background work.
    """

    cluster: Cluster
    membership: Membership
    controller: Controller

    def __init__(
        self, node_id: int, store: MetadataStore, nursery: trio.Nursery | None = None
    ) -> None:
        self.id = node_id
        self.keeps_records = True
        self.is_clean = False
        self.directories: Mapping[str, str] = DIRECTORIES
        self.options: dict[str, str] = {}
        self._store = store
        self._nursery = nursery
        self._work = trio.CancelScope()

    async def start(self) -> None:
        """Join the cluster and run the background work of a node."""
        await self.join()
        await self.controller.process_changes()
        self._work = trio.CancelScope()
        if self._nursery is not None:
            await self._nursery.start(self._run)

    async def join(self) -> None:
        """Register and become ready."""
        await self.register()
        await self.membership.become_ready()

    async def register(self) -> None:
        """Register without becoming ready."""
        config = BrokerConfig.load(options={"node.id": str(self.id), **self.options}, nodes=3)
        self.cluster = await Cluster.open(self._store)
        self.membership = Membership(
            self.cluster,
            config,
            directories=self.directories,
            is_clean=self.is_clean,
            keeps_records=self.keeps_records,
        )
        self.controller = Controller(self.cluster, self.membership, config)
        for each in (self.membership, self.controller):
            self.cluster.subscribe_nodes(each.nodes_changed)
            self.cluster.subscribe(each.topics_changed)
        await self.membership.register({})

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        with self._work:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.membership.run)
                nursery.start_soon(self.controller.run)
                nursery.start_soon(self.controller.balance_regularly)
                task_status.started()

    async def crash(self) -> None:
        """Stop without ending the registration."""
        self.is_clean = False
        self._work.cancel()
        await self.cluster.aclose()
        await wait_until_settled()

    async def stop(self) -> None:
        """Perform a controlled shutdown."""
        with trio.move_on_after(5):
            await self.membership.leave()
        self._work.cancel()
        await self.membership.end(clean=True)
        await self.cluster.aclose()
        self.is_clean = True
        await wait_until_settled()

    def partition(self, index: int = 0) -> Partition:
        """Return a partition of the topic as this node knows it."""
        return self.cluster.topics[TOPIC].partitions[index]

    async def put_isr(self, isr: list[int], index: int = 0) -> int | None:
        """Store an ISR as the leader."""
        added = {
            each: registration.epoch
            for each in isr
            if (registration := self.cluster.registration(each)) is not None
        }
        return await self.cluster.change_isr(
            [IsrChange(self.cluster.topics[TOPIC], self.partition(index), isr, added)],
            self_id=self.id,
            self_epoch=self.membership.epoch,
            cause="caught up",
        )


async def wait_until_settled() -> None:
    """Wait until all immediate work is done."""
    for _ in range(30):
        await trio.lowlevel.checkpoint()


async def lease_ends() -> None:
    """Wait until the leases of crashed nodes have expired."""
    await trio.sleep(1)
    await wait_until_settled()


@asynccontextmanager
async def members(count: int = 3) -> AsyncIterator[list[Member]]:
    """Run nodes 1 to `count` on one store."""
    files = MemFiles()
    files.mkdir("data")
    store = LocalStore(files, "data/journal")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        every = [Member(node_id, store, nursery) for node_id in range(1, count + 1)]
        for each in every:
            await each.start()
        yield every
        nursery.cancel_scope.cancel()
    with contextlib.suppress(Exception):
        await store.aclose()


async def make_topic(member: Member, *replicas: list[int], **configs: str) -> None:
    """Create the topic with one partition per list of nodes; settings have `_` for dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await member.cluster.create_topic(TOPIC, replicas, named, cause="test")
    await wait_until_settled()
