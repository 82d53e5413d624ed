"""The known nodes of a cluster, and the registrations of the running nodes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.schema import BrokerEpoch

from .features import UNREGISTERED_RANGES, Ranges
from .keys import CONTROLLER, CONTROLLER_ALIVE, LIVE, NODES, READY
from .store import ABSENT, Document, Entry

NO_NODE = -1
# Broker epoch of a node that is not registered.
NO_EPOCH = BrokerEpoch(-1)


class Registration(NamedTuple):
    """A running node. Its broker epoch `epoch` is different for each run (KIP-631)."""

    node_id: int
    epoch: BrokerEpoch
    incarnation: str
    listeners: Mapping[str, Endpoint]
    rack: str | None
    # True if the node may lead partitions and join ISRs.
    ready: bool

    @classmethod
    def from_entry(cls, node_id: int, entry: Entry, *, ready: bool) -> Registration:
        value = entry.value
        listeners = _parse_listeners(value["listeners"])
        epoch = BrokerEpoch(entry.revision)
        return cls(node_id, epoch, value["incarnation"], listeners, value["rack"], ready)

    def to_document(self) -> Document:
        listeners = _format_listeners(self.listeners)
        return {"incarnation": self.incarnation, "listeners": listeners, "rack": self.rack}


def _parse_listeners(addresses: Mapping[str, str]) -> dict[str, Endpoint]:
    return {name: Endpoint.parse(text) for name, text in addresses.items()}


def _format_listeners(listeners: Mapping[str, Endpoint]) -> dict[str, str]:
    return {name: str(endpoint) for name, endpoint in listeners.items()}


class KnownNode(NamedTuple):
    """The persistent data of a node, which may be down.

    Attributes:
        directories: Paths of the log directories at the last start, by directory ID.
        cordoned: True if the node gets no new partitions (KIP-1066).
        clean_epoch: Broker epoch of the last run if the node shut down cleanly, else -1.
        rack: Rack of the node.
        features: Level ranges that the node supports.
        listeners: Advertised addresses at the last start, by listener; empty if written by an older kbroker.
        revision: Revision of the entry in the store.
    """

    directories: Mapping[str, str] = MappingProxyType({})
    cordoned: bool = False
    clean_epoch: BrokerEpoch = NO_EPOCH
    rack: str | None = None
    features: Ranges = MappingProxyType(UNREGISTERED_RANGES)
    listeners: Mapping[str, Endpoint] = MappingProxyType({})
    revision: int = ABSENT

    @classmethod
    def from_entry(cls, entry: Entry) -> KnownNode:
        value = entry.value
        return cls(
            value["directories"],
            value.get("cordoned", False),
            value.get("clean", NO_EPOCH),
            value.get("rack"),
            value.get("features", UNREGISTERED_RANGES),
            _parse_listeners(value.get("listeners", {})),
            entry.revision,
        )

    def to_document(self) -> Document:
        return {
            "directories": dict(self.directories),
            "cordoned": self.cordoned,
            "clean": self.clean_epoch,
            "rack": self.rack,
            "features": dict(self.features),
            "listeners": _format_listeners(self.listeners),
        }


class Registrations:
    """A cache of the metadata about nodes and the controller."""

    def __init__(self) -> None:
        self.known: dict[int, KnownNode] = {}
        self.live: dict[int, Registration] = {}
        self.ready_revisions: dict[int, int] = {}
        self.controller_id = NO_NODE
        self.controller_alive_revision = ABSENT
        self.controller_revision = ABSENT
        self.controller_epoch = 0

    def put(self, key: str, entry: Entry | None) -> int | None:
        """Apply an entry (None if deleted), and return the node that it concerns.

        Returns:
            The node ID, or None if the entry does not concern nodes.
        """
        if key == CONTROLLER:
            return self._put_controller(entry)
        if key == CONTROLLER_ALIVE:
            self.controller_id = NO_NODE if entry is None else int(entry.value["node"])
            self.controller_alive_revision = ABSENT if entry is None else entry.revision
            return self.controller_id
        prefix, slash, number = key.partition("/")
        if prefix + slash not in (NODES, LIVE, READY):
            return None
        node_id = int(number)
        if prefix + slash == NODES:
            self._put_known(node_id, entry)
        elif prefix + slash == LIVE:
            self._put_live(node_id, entry)
        else:
            self._put_ready(node_id, entry)
        return node_id

    def _put_controller(self, entry: Entry | None) -> int:
        if entry is None:
            return NO_NODE
        self.controller_revision = entry.revision
        self.controller_epoch = int(entry.value["epoch"])
        return int(entry.value["node"])

    def _put_known(self, node_id: int, entry: Entry | None) -> None:
        if entry is None:
            self.known.pop(node_id, None)
        else:
            self.known[node_id] = KnownNode.from_entry(entry)

    def _put_live(self, node_id: int, entry: Entry | None) -> None:
        if entry is None:
            self.live.pop(node_id, None)
        else:
            ready = node_id in self.ready_revisions
            self.live[node_id] = Registration.from_entry(node_id, entry, ready=ready)

    def _put_ready(self, node_id: int, entry: Entry | None) -> None:
        if entry is None:
            self.ready_revisions.pop(node_id, None)
        else:
            self.ready_revisions[node_id] = entry.revision
        if node_id in self.live:
            self.live[node_id] = self.live[node_id]._replace(ready=entry is not None)

    @property
    def ready(self) -> dict[int, BrokerEpoch]:
        """Broker epochs of the nodes that may lead partitions."""
        return {each.node_id: each.epoch for each in self.live.values() if each.ready}

    @property
    def live_epochs(self) -> dict[int, BrokerEpoch]:
        """Broker epochs of all running nodes."""
        return {each.node_id: each.epoch for each in self.live.values()}
