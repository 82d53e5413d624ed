"""Coordinators: pure state machines that turn requests and time into records and answers."""

from .coordinator import GroupCoordinator
from .offsets import TopicNames
from .placement import hash_partition
from .result import Answer, ClientInfo, CoordinatorRecord, Event, Now, Parked, Result, append_error
from .settings import GroupSettings

__all__ = [
    "Answer",
    "ClientInfo",
    "CoordinatorRecord",
    "Event",
    "GroupCoordinator",
    "GroupSettings",
    "Now",
    "Parked",
    "Result",
    "TopicNames",
    "append_error",
    "hash_partition",
]
