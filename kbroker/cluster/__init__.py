"""What is true for all nodes of a cluster, whatever machine they run on."""

from .cluster import Cluster, TopicsChanged
from .model import INTERNAL_TOPICS, NO_LEADER, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Partition, Topic
from .store import LocalStore, MetadataStore

__all__ = [
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "OFFSETS_TOPIC",
    "TRANSACTIONS_TOPIC",
    "Cluster",
    "LocalStore",
    "MetadataStore",
    "Partition",
    "Topic",
    "TopicsChanged",
]
