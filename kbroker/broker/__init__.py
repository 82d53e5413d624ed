"""The handle that a program embeds: one cluster and its local nodes."""

from .broker import MEMORY_FOLDER, Apart, Broker, open_broker

__all__ = ["MEMORY_FOLDER", "Apart", "Broker", "open_broker"]
