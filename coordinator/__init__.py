"""Coordinators: pure state machines that turn requests and time into records and answers."""

from .coordinator import GroupCoordinator
from .offsets import TopicNames
from .placement import hash_partition
from .rebalance import some_of
from .result import (
    Answer,
    ClientInfo,
    CoordinatorRecord,
    Event,
    Now,
    Parked,
    Pieces,
    Result,
    TransactionEvent,
    append_error,
)
from .settings import GroupSettings
from .transaction import Transaction, TransactionState
from .transactions import TransactionCoordinator, TransactionSettings, names_whole_producer

__all__ = [
    "Answer",
    "ClientInfo",
    "CoordinatorRecord",
    "Event",
    "GroupCoordinator",
    "GroupSettings",
    "Now",
    "Parked",
    "Pieces",
    "Result",
    "TopicNames",
    "Transaction",
    "TransactionCoordinator",
    "TransactionEvent",
    "TransactionSettings",
    "TransactionState",
    "append_error",
    "hash_partition",
    "names_whole_producer",
    "some_of",
]
