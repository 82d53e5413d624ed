"""Client quotas (KIP-546) as a node caches them: one store entry per entity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from kbroker.security.quotas import IP, AddressLimits, Entity, Limits, QuotaKey

from .keys import CLIENT_QUOTAS
from .store import ABSENT, Document, Entry

# Quotas of one entity, by key.
Values: TypeAlias = Mapping[str, float]
NONE: Values = MappingProxyType({})


class ClientQuota(NamedTuple):
    """The quotas of one entity."""

    entity: Entity
    values: Values


class _Stored(NamedTuple):
    quota: ClientQuota
    revision: int


class ClientQuotas:
    """The client quotas of the cluster. `view` updates them with each change of the store."""

    def __init__(self) -> None:
        # Quotas of users and client IDs; None while there are none, which each request checks.
        self.of_clients: Mapping[QuotaKey, Limits] | None = None
        # Quotas of IP addresses; None while there are none.
        self.of_addresses: AddressLimits | None = None
        self._limits = {key: Limits() for key in QuotaKey}
        self._addresses = AddressLimits()
        self._known: dict[str, _Stored] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    @property
    def all(self) -> Sequence[ClientQuota]:
        """All quotas, unordered."""
        return [each.quota for each in self._known.values()]

    def values(self, key: str) -> Values:
        """Return the quotas under a store key."""
        stored = self._known.get(key)
        return NONE if stored is None else stored.quota.values

    def revision(self, key: str) -> int:
        """Return the store revision of an entry."""
        stored = self._known.get(key)
        return ABSENT if stored is None else stored.revision

    def put(self, key: str, entry: Entry | None) -> None:
        """Apply an entry; None removes it."""
        before = self._known.pop(key, None)
        if before is not None:
            self._set(before.quota.entity, dict.fromkeys(before.quota.values))
        if entry is not None:
            quota = ClientQuota(entry.value["entity"], entry.value["values"])
            self._known[key] = _Stored(quota, entry.revision)
            self._set(quota.entity, quota.values)
        self.of_clients = self._limits if any(self._limits.values()) else None
        self.of_addresses = self._addresses if self._addresses else None

    def _set(self, entity: Entity, values: Mapping[str, float | None]) -> None:
        for key, value in values.items():
            if IP in entity:
                self._addresses.put(entity[IP], value)
            else:
                self._limits[QuotaKey(key)].put(entity, value)


def to_document(entity: Entity, values: Values) -> Document:
    """Return the stored form of an entity's quotas."""
    return {"entity": dict(entity), "values": dict(values)}


def key_of(entity: Entity) -> str:
    """Return the store key of an entity: a hash, so that the key has a fixed length."""
    text = json.dumps(dict(entity), sort_keys=True)
    return CLIENT_QUOTAS + hashlib.sha256(text.encode()).hexdigest()[:32]
