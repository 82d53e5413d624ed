"""The data model of the cluster metadata: topics, partitions and config resources."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import BrokerEpoch
from kbroker.runtime.ids import random_uuid

from .registrations import NO_EPOCH
from .store import Document

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

NO_LEADER = -1
# Name of the BROKER resource whose settings apply to all nodes.
EVERY_NODE = ""
TOPIC_NAME_MAX = 249
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(slots=True)
class Partition:
    """The replicated state of a partition.

    Attributes:
        index: Partition number.
        replicas: Assigned nodes, the preferred leader first.
        isr: In-sync replicas.
        leader: Leader, or -1.
        leader_epoch: Increases with each election.
        revision: Revision of the entry in the store.
        leader_registration: Broker epoch of the leader at its election. The leader loses the
            leadership if it registers again.
        elr: Eligible leader replicas: out of sync, but with all committed records, because an ISR
            below min.insync.replicas commits nothing (KIP-966).
        adding: Replicas that a reassignment adds (KIP-455).
        removing: Replicas that a reassignment removes.
    """

    index: int
    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    revision: int = 0
    leader_registration: BrokerEpoch = NO_EPOCH
    elr: Sequence[int] = ()
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @classmethod
    def unplaced(cls, index: int) -> Partition:
        """Return a partition without replicas."""
        return cls(index, [], [], NO_LEADER, 0)

    @classmethod
    def new(cls, index: int, replicas: list[int], ready: Mapping[int, BrokerEpoch]) -> Partition:
        """Return a new partition whose ready replicas are in sync, because all logs are empty.

        Args:
            index: Partition number.
            replicas: Assigned nodes, the preferred leader first.
            ready: Broker epochs of the nodes that may lead.
        """
        isr = [each for each in replicas if each in ready] or list(replicas)
        leader = isr[0] if isr[0] in ready else NO_LEADER
        registration = ready.get(leader, NO_EPOCH)
        return cls(index, replicas, isr, leader, 0, leader_registration=registration)

    def to_document(self) -> Document:
        document: Document = {
            "replicas": self.replicas,
            "isr": self.isr,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "leader_registration": self.leader_registration,
        }
        rare = {"elr": self.elr, "adding": self.adding, "removing": self.removing}
        return document | {name: list(nodes) for name, nodes in rare.items() if nodes}

    @classmethod
    def from_document(cls, index: int, document: Document, revision: int) -> Partition:
        return cls(index=index, revision=revision, **document)


@dataclass(slots=True)
class Topic:
    """A topic. A topic that is deleted and created again gets a new ID (KIP-516)."""

    name: str
    id: uuid.UUID
    revision: int = 0
    configs: dict[str, str] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    # A `placement` for each creation of partitions.
    placed: list[Document] = field(default_factory=list)

    def apply_document(self, document: Document) -> list[Partition]:
        """Apply a stored topic entry and return the new partitions.

        A partition that stays unplaced has an entry of its own, which follows.
        """
        known = len(self.partitions)
        self.configs = dict(document["configs"])
        self.placed = document.get("placed", [])
        for each in self.placed:
            if each["first"] >= known:
                self._fill_up(each["first"])
                self.partitions += _read_placement(each)
        self._fill_up(document["partitions"])
        return self.partitions[known:]

    def _fill_up(self, count: int) -> None:
        for index in range(len(self.partitions), count):
            self.partitions.append(Partition.unplaced(index))

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        first = self.partitions[0]
        return len(first.replicas) - len(first.removing)

    def to_document(self) -> Document:
        return {
            "id": str(self.id),
            "partitions": len(self.partitions),
            "configs": self.configs,
            "placed": self.placed,
        }


def placement(
    first: int, replicas: Sequence[Sequence[int]], ready: Mapping[int, BrokerEpoch]
) -> Document:
    """Return the stored form of the replicas of new partitions.

    Args:
        first: Number of the first new partition.
        replicas: Nodes of each partition, the preferred leader first.
        ready: Broker epochs of the nodes that may lead.
    """
    return {
        "first": first,
        "replicas": [[*each] for each in replicas],
        "ready": {str(node_id): epoch for node_id, epoch in ready.items()},
    }


def _read_placement(document: Document) -> Iterator[Partition]:
    """Yield the partitions of a `placement`."""
    ready = {int(node_id): epoch for node_id, epoch in document["ready"].items()}
    for index, replicas in enumerate(document["replicas"], document["first"]):
        yield Partition.new(index, [*replicas], ready)


class ResourceType(IntEnum):
    """Types of config resources, by their wire number (Kafka's ``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with settings."""

    type: ResourceType
    name: str


@dataclass(slots=True)
class StoredConfigs:
    """The settings of a resource other than a topic, and the revision of their entry."""

    values: dict[str, str]
    revision: int


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless Kafka accepts `name` as a topic name."""
    if not name or name in {".", ".."}:
        reason = f"the topic name {name!r} is not allowed; choose another name"
    elif len(name) > TOPIC_NAME_MAX:
        reason = f"a topic name has at most {TOPIC_NAME_MAX} characters, this one has {len(name)}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"the topic name {name!r} has other characters than letters, digits, '.', '_', '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)


def collision_key(name: str) -> str:
    """Return a key that is equal for colliding names: Kafka metric names treat '.' as '_'."""
    return name.replace(".", "_")


def random_cluster_id() -> str:
    """Return a random ID of 22 characters like Kafka's: URL-safe base64 of 16 bytes.

    It never starts with '-', which command lines would parse as an option.
    """
    while True:
        text = base64.urlsafe_b64encode(random_uuid().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
