"""The handle that a program embeds: one cluster and its local nodes."""

from .broker import MEMORY_FOLDER, Broker, open_broker
from .local_node import Apart
from .service import Service

__all__ = ["MEMORY_FOLDER", "Apart", "Broker", "Service", "open_broker"]
