"""The handle that a program embeds: one cluster and its local nodes."""

from .broker import MEMORY_DIRECTORY, Broker, open_broker
from .local_node import DistributedNodeOptions
from .service import Service

__all__ = ["MEMORY_DIRECTORY", "Broker", "DistributedNodeOptions", "Service", "open_broker"]
