"""Cluster metadata, shared by all nodes: topics, partitions, leaders, settings and registrations."""

from .cluster import Cluster, IsrChange, Resignation
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
    "LocalStore",
    "MetadataStore",
    "NodesChanged",
    "Partition",
    "PartitionChange",
    "Registration",
    "Resignation",
    "ResourceType",
    "Topic",
    "TopicsChanged",
]
