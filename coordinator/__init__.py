"""Group, transaction and share coordinators: pure state machines without I/O.

A coordinator takes requests and the current time, and returns log records and responses.
"""

from .common.assignor import TopicShape
from .common.events import some_of
from .common.memory import GroupMemory, MemoryLimit
from .common.placement import hash_partition
from .common.record import CoordinatorRecord
from .common.result import (
    Answer,
    ClientInfo,
    Event,
    Now,
    PendingResponse,
    Pieces,
    Result,
    TransactionEvent,
    append_error,
)
from .common.settings import (
    ConsumerGroupSettings,
    GroupSettings,
    MigrationPolicy,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from .common.topics import TopicNames
from .consumer.target_assignments import TopicRights
from .group_coordinator import GroupCoordinator
from .share.acquiring import Acquired, Acquirer, LogBatch, acquire, without_aborted
from .share.coordinator import ShareCoordinator
from .share.delivery import Acknowledgement, DeliverySettings, ShareDelivery
from .share.dlq_records import CopiedRecords, DeadLetters, DeadLetterSource
from .share.in_flight import Change, RecordState
from .share.initialization import StatesToInitialize
from .share.state_batches import PersisterStateBatch, PersisterStateBatches
from .transactions.coordinator import (
    TransactionCoordinator,
    TransactionSettings,
    has_complete_producer,
)
from .transactions.transaction import TransactionMetadata, TransactionState

__all__ = [
    "Acknowledgement",
    "Acquired",
    "Acquirer",
    "Answer",
    "Change",
    "ClientInfo",
    "ConsumerGroupSettings",
    "CoordinatorRecord",
    "CopiedRecords",
    "DeadLetterSource",
    "DeadLetters",
    "DeliverySettings",
    "Event",
    "GroupCoordinator",
    "GroupMemory",
    "GroupSettings",
    "LogBatch",
    "MemoryLimit",
    "MigrationPolicy",
    "Now",
    "PendingResponse",
    "PersisterStateBatch",
    "PersisterStateBatches",
    "Pieces",
    "RecordState",
    "Result",
    "ShareCoordinator",
    "ShareDelivery",
    "ShareGroupSettings",
    "StatesToInitialize",
    "StreamsGroupSettings",
    "TopicNames",
    "TopicRights",
    "TopicShape",
    "TransactionCoordinator",
    "TransactionEvent",
    "TransactionMetadata",
    "TransactionSettings",
    "TransactionState",
    "acquire",
    "append_error",
    "has_complete_producer",
    "hash_partition",
    "some_of",
    "without_aborted",
]
