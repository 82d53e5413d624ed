"""Coordinators: pure state machines that turn requests and time into records and answers."""

from .coordinator import GroupCoordinator, group_partition
from .offsets import TopicNames
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
    "group_partition",
]
