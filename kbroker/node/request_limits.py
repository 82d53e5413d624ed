"""Limits of the memory of requests, over all connections of a node."""

from __future__ import annotations

from kbroker.config import BrokerConfig
from kbroker.runtime.fair_slots import FairSlots

from .pending_fetches import PendingFetches
from .request_memory import RequestMemory

# Maximum number of requests with many elements that only read and are handled concurrently. While
# it is handled, each takes up to 25 times its size (75 MB with 100,000 elements).
LARGE_READS_MAX = 4


class RequestLimits:
    """Limits of the memory of requests, over all connections of a node.

    Attributes:
        memory: Limit of the received data of large requests.
        large_reads: Limit of concurrent requests with many elements that only read.
        pending_fetches: Limit of the partitions of fetches that wait for records.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self.large_reads = FairSlots(LARGE_READS_MAX)
        self.pending_fetches = PendingFetches(config.pending_fetch_partitions_max)
