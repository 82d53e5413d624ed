"""Context of a node: its ID, settings, cluster metadata, clock, errors and shared resources."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config import BrokerConfig
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.changes import Changes
from kbroker.runtime.clock import Clock
from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.error_log import ErrorLog
from kbroker.runtime.threads import InThread
from kbroker.runtime.time_slices import FairQueue

from .cluster import Cluster
from .live_config import LiveConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Context of one node, which all components of the node share.

    Attributes:
        node_id: ID of the node.
        live_config: Settings of the node, which may change while it runs; read `config`.
        cluster: Metadata of the cluster.
        clock: Time of the node.
        error_log: Errors of the node, and the messages that were logged already.
        changes: Wakes tasks that wait until something changes in the node.
        in_memory: True if the node stores nothing on a disk.
        in_thread: Runs blocking work in a worker thread.
        disk_reads: Loads bytes that are only on a disk without blocking the event loop.
        batch_reads: Reads stored batches within the time slice of a client.
        fair_queue: Order in which long work continues in the event loop.
    """

    node_id: int
    live_config: LiveConfig
    cluster: Cluster
    clock: Clock
    error_log: ErrorLog
    changes: Changes
    in_memory: bool
    in_thread: InThread
    disk_reads: DiskReads
    batch_reads: BatchReads
    fair_queue: FairQueue

    @property
    def config(self) -> BrokerConfig:
        """The current settings of the node. Do not keep them: a client may change them."""
        return self.live_config.now
