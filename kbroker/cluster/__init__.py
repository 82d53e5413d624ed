"""What is true for all nodes of a cluster, whatever machine they run on."""

from .cluster import Cluster, IsrChange, Leaving
from .local_store import LocalStore
from .model import (
    EVERY_NODE,
    INTERNAL_TOPICS,
    NO_LEADER,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    ConfigResource,
    Partition,
    ResourceType,
    Topic,
)
from .registrations import Registration
from .store import MetadataStore
from .view import NodesChanged, PartitionChange, TopicsChanged

__all__ = [
    "EVERY_NODE",
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTIONS_TOPIC",
    "Cluster",
    "ConfigResource",
    "IsrChange",
    "Leaving",
    "LocalStore",
    "MetadataStore",
    "NodesChanged",
    "Partition",
    "PartitionChange",
    "Registration",
    "ResourceType",
    "Topic",
    "TopicsChanged",
]
