"""Clusters without networks, and changes that tests request from them."""

from __future__ import annotations

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.controller import Controller
from kbroker.cluster.membership import Membership
from kbroker.config import BrokerConfig
from kbroker.storage.files import MemFiles

from .members import wait_until_settled


async def start(cluster: Cluster) -> None:
    """Register node 1 and let it become leader."""
    member = Membership(cluster, BrokerConfig(), directories={}, is_clean=True, keeps_records=True)
    cluster.subscribe_nodes(member.nodes_changed)
    await member.register({})
    await member.become_ready()
    await Controller(cluster, member, BrokerConfig()).process_changes()


async def open_cluster(files: MemFiles) -> Cluster:
    files.mkdir("data")
    cluster = await Cluster.open(LocalStore(files, "data/journal"))
    await start(cluster)
    return cluster


async def move(member: object, nodes: list[int]) -> None:
    await member.cluster.reassign("orders", 0, nodes, factor_may_change=True, cause="test")  # type: ignore[attr-defined]
    await wait_until_settled()
