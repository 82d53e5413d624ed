"""Coordinators: pure state machines that turn requests and time into records and answers."""

from .assignors import TopicShape
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
from .settings import (
    ConsumerGroupSettings,
    GroupSettings,
    MigrationPolicy,
    StreamsGroupSettings,
)
from .share_states import ShareStateCoordinator
from .transaction import Transaction, TransactionState
from .transactions import TransactionCoordinator, TransactionSettings, names_whole_producer

__all__ = [
    "Answer",
    "ClientInfo",
    "ConsumerGroupSettings",
    "CoordinatorRecord",
    "Event",
    "GroupCoordinator",
    "GroupSettings",
    "MigrationPolicy",
    "Now",
    "Parked",
    "Pieces",
    "Result",
    "ShareStateCoordinator",
    "StreamsGroupSettings",
    "TopicNames",
    "TopicShape",
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
