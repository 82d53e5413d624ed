"""Coordinators: pure state machines that turn requests and time into records and answers."""

from .assignors import TopicShape
from .coordinator import GroupCoordinator
from .in_flight import Change, RecordState
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
    ShareGroupSettings,
    StreamsGroupSettings,
)
from .share_acquiring import Acquired, LogBatch, Taker, acquire, without_aborted
from .share_delivery import Acknowledgement, DeliverySettings, ShareDelivery
from .share_making import ToMake
from .share_states import ShareStateCoordinator
from .sharing import TopicRights
from .state_batches import StateBatch, StateBatches
from .transaction import Transaction, TransactionState
from .transactions import TransactionCoordinator, TransactionSettings, names_whole_producer

__all__ = [
    "Acknowledgement",
    "Acquired",
    "Answer",
    "Change",
    "ClientInfo",
    "ConsumerGroupSettings",
    "CoordinatorRecord",
    "DeliverySettings",
    "Event",
    "GroupCoordinator",
    "GroupSettings",
    "LogBatch",
    "MigrationPolicy",
    "Now",
    "Parked",
    "Pieces",
    "RecordState",
    "Result",
    "ShareDelivery",
    "ShareGroupSettings",
    "ShareStateCoordinator",
    "StateBatch",
    "StateBatches",
    "StreamsGroupSettings",
    "Taker",
    "ToMake",
    "TopicNames",
    "TopicRights",
    "TopicShape",
    "Transaction",
    "TransactionCoordinator",
    "TransactionEvent",
    "TransactionSettings",
    "TransactionState",
    "acquire",
    "append_error",
    "hash_partition",
    "names_whole_producer",
    "some_of",
    "without_aborted",
]
