"""The keys of the metadata store."""

from __future__ import annotations

import uuid

META = "meta"
# Replaces META while the metadata is migrated to another store.
LEAVING = "leaving"
FEATURES = "features"
PRODUCER_IDS = "pid_block"
TOPICS = "topics/"
PARTITIONS = "p/"
CONFIGS = "configs/"
SCRAM_USERS = "scram/"
# Secret for fake credentials of unknown SCRAM users. All nodes must fake the same credentials.
SCRAM_SECRET = "scram_secret"
ACLS = "acls/"
DELEGATION_TOKENS = "tokens/"
CLIENT_QUOTAS = "quotas/"

# Persistent data of a node: its log directories, and whether its last shutdown was clean.
NODES = "nodes/"
# Attached to a node's lease; its revision is the broker epoch of this run.
LIVE = "live/"
# Attached to a node's lease: the node may lead and join ISRs.
READY = "ready/"
# Rewritten by each new controller. The entry's revision fences writes of earlier controllers.
CONTROLLER = "controller"
# Attached to the lease of the active controller.
CONTROLLER_ALIVE = "controller_alive"


def partition_key(topic_id: uuid.UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


def node_key(node_id: int) -> str:
    return f"{NODES}{node_id}"


def live_key(node_id: int) -> str:
    return f"{LIVE}{node_id}"


def ready_key(node_id: int) -> str:
    return f"{READY}{node_id}"
