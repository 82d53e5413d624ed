"""What the nodes of a cluster agree on: topics, partitions and where they live."""

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
EVERY_NODE = ""
"""The name of the BROKER resource whose settings hold for all nodes."""
TOPIC_NAME_MAX = 249
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(slots=True)
class Partition:
    """One partition's place in the cluster.

    `leader_epoch` rises with each election, `revision` is that of its entry in the store. A node
    leads only while its broker epoch is `leader_registration`: after a restart it has to be elected
    again. `elr` are the nodes that are out of sync but have all that was committed, because nothing
    is while the in-sync ones are too few (KIP-966). `adding` and `removing` say what a reassignment
    does (KIP-455).
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
    def nowhere(cls, index: int) -> Partition:
        """Not placed yet."""
        return cls(index, [], [], NO_LEADER, 0)

    @classmethod
    def new(cls, index: int, replicas: list[int], ready: Mapping[int, BrokerEpoch]) -> Partition:
        """In sync on all its nodes that are ready: their logs are empty alike.

        Parameters: `ready` are the broker epochs of nodes that may lead.
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
    """A topic; a topic that is deleted and made again has a new id (KIP-516)."""

    name: str
    id: uuid.UUID
    revision: int = 0
    configs: dict[str, str] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    placed: list[Document] = field(default_factory=list)
    """Where partitions were put when they were made: a `placement` for each time."""

    def take_over(self, document: Document) -> list[Partition]:
        """Be as a document says; returns the partitions that are new.

        One that is placed nowhere is followed by its own entry.
        """
        known = len(self.partitions)
        self.configs = dict(document["configs"])
        self.placed = document.get("placed", [])
        for each in self.placed:
            if each["first"] >= known:
                self._fill_up(each["first"])
                self.partitions += _placed(each)
        self._fill_up(document["partitions"])
        return self.partitions[known:]

    def _fill_up(self, count: int) -> None:
        for index in range(len(self.partitions), count):
            self.partitions.append(Partition.nowhere(index))

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
    """Where new partitions are put, of which `first` is the lowest.

    Parameters: `ready` are the broker epochs of nodes that may lead.
    """
    return {
        "first": first,
        "replicas": [[*each] for each in replicas],
        "ready": {str(node_id): epoch for node_id, epoch in ready.items()},
    }


def _placed(document: Document) -> Iterator[Partition]:
    """The partitions of a `placement`."""
    ready = {int(node_id): epoch for node_id, epoch in document["ready"].items()}
    for index, replicas in enumerate(document["replicas"], document["first"]):
        yield Partition.new(index, [*replicas], ready)


class ResourceType(IntEnum):
    """What has settings, as numbered in requests (Kafka's ``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """One thing that has settings."""

    type: ResourceType
    name: str


@dataclass(slots=True)
class StoredConfigs:
    """The own settings of a resource other than a topic; `revision` is that of their entry."""

    values: dict[str, str]
    revision: int


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` can be a topic's name in Kafka."""
    if not name or name in {".", ".."}:
        reason = f"the topic name {name!r} is not allowed"
    elif len(name) > TOPIC_NAME_MAX:
        reason = f"a topic name has at most {TOPIC_NAME_MAX} characters, this one has {len(name)}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"the topic name {name!r} has other characters than letters, digits, '.', '_', '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)


def collision_key(name: str) -> str:
    """Names that are equal here collide: Kafka's metric names cannot tell '.' from '_'."""
    return name.replace(".", "_")


def random_cluster_id() -> str:
    """A random id of 22 characters as Kafka prints them: URL-safe base64 of 16 bytes.

    One that starts with '-' would look like an option on a command line.
    """
    while True:
        text = base64.urlsafe_b64encode(random_uuid().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
