"""A Kafka cluster to embed in a program: the cluster and its nodes in this process."""

from .broker import MEMORY_DIRECTORY, Broker, open_broker
from .local_node import DistributedNodeOptions
from .service import Service

__all__ = ["MEMORY_DIRECTORY", "Broker", "DistributedNodeOptions", "Service", "open_broker"]
