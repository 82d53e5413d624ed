"""The keys of the metadata store."""

from __future__ import annotations

import uuid

META = "meta"
LEAVING = "leaving"
"""In the place of `META` while a cluster's metadata is moved to another store."""
FEATURES = "features"
PRODUCER_IDS = "pid_block"
TOPICS = "topics/"
PARTITIONS = "p/"
CONFIGS = "configs/"
SCRAM_USERS = "scram/"
SCRAM_SECRET = "scram_secret"
"""What pretended SCRAM users are made with: all nodes pretend alike."""
ACLS = "acls/"
DELEGATION_TOKENS = "tokens/"
CLIENT_QUOTAS = "quotas/"

NODES = "nodes/"
"""What outlives a node's runs: its data directories, and whether its last run ended well."""
LIVE = "live/"
"""Hangs on a node's lease. Its revision is the broker epoch of this run of the node."""
READY = "ready/"
"""Hangs on a node's lease: it may lead and be in sync."""
CONTROLLER = "controller"
"""Written anew by each controller when it takes over; its revision fences all that it writes."""
CONTROLLER_ALIVE = "controller_alive"
"""Hangs on the lease of the node that is the controller."""


def partition_key(topic_id: uuid.UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


def node_key(node_id: int) -> str:
    return f"{NODES}{node_id}"


def live_key(node_id: int) -> str:
    return f"{LIVE}{node_id}"


def ready_key(node_id: int) -> str:
    return f"{READY}{node_id}"
