"""Client quotas: entities, values and the order in which quotas apply.

A quota applies to a user, a client ID, both together, or an IP address, by name or as the default
for all others (KIP-55, KIP-124, KIP-599, KIP-612).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import NamedTuple, TypeAlias

# Entity types, by their names on the wire.
USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

# The entity of a quota: names by type; None is the default of a type.
Entity: TypeAlias = Mapping[str, str | None]


class QuotaKey(StrEnum):
    """Quota types, by their names on the wire."""

    # Bytes per second.
    PRODUCER_BYTE_RATE = "producer_byte_rate"
    # Bytes per second.
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    # Percent of the time of one thread.
    REQUEST_PERCENTAGE = "request_percentage"
    # Created and deleted partitions per second.
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    # Connections per second.
    CONNECTION_CREATION_RATE = "connection_creation_rate"


# Maximum values of the integer quotas.
_VALUES_MAX = {
    QuotaKey.PRODUCER_BYTE_RATE: 2.0**63,
    QuotaKey.CONSUMER_BYTE_RATE: 2.0**63,
    QuotaKey.CONNECTION_CREATION_RATE: 2.0**31 - 1,
}
# Largest fraction that still counts as an integer, as in Kafka.
_FRACTION = 1e-6

# User or client ID in the key of a quota that has no user or no client ID. Names are never empty.
_ABSENT = ""


def text_of(entity: Entity) -> str:
    """Return an entity as readable text."""
    return ",".join(
        f"{kind}={'<default>' if name is None else name}" for kind, name in entity.items()
    )


class BadQuota(ValueError):
    """An invalid quota; the message gives the reason."""


def check_entity(entity: Entity) -> None:
    """Raise BadQuota if the entity cannot have a quota."""
    if not entity:
        raise BadQuota("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in ENTITY_TYPES:
            raise BadQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise BadQuota(f"Empty {kind} not supported")
    if IP in entity:
        if len(entity) > 1:
            raise BadQuota("IP quota: it cannot be combined with user or client-id; remove them")
        check_address(entity[IP])


def check_address(name: str | None) -> None:
    """Raise BadQuota if the name is not an IP address; None is the default."""
    try:
        if name is not None:
            ip_address(name)
    except ValueError:
        raise BadQuota(f"{name} is not a valid IP; host names are not resolved") from None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise BadQuota if the entity cannot have this value for the key."""
    is_key = key in [*QuotaKey] and (IP in entity) == (key == QuotaKey.CONNECTION_CREATION_RATE)
    if not is_key:
        raise BadQuota(f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise BadQuota(f"Quota {key} must be a finite number")
    if value <= 0:
        raise BadQuota(f"Quota {key} must be greater than 0")
    largest = _VALUES_MAX.get(QuotaKey(key))
    if largest is None:
        return
    if value > largest:
        raise BadQuota(f"Proposed value for {key} is too large")
    if value % 1.0 > _FRACTION:
        raise BadQuota(f"{key} cannot be a fractional value")


class Limit(NamedTuple):
    """A rate and the scope that shares it: an empty user or client ID is not part of the scope."""

    rate: float
    user: str
    client_id: str


class Limits:
    """All quotas of one key, by entity."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str | None, str | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._rates)

    def put(self, entity: Entity, rate: float | None) -> None:
        """Set a quota; None removes it."""
        key = entity.get(USER, _ABSENT), entity.get(CLIENT_ID, _ABSENT)
        if rate is None:
            self._rates.pop(key, None)
        else:
            self._rates[key] = rate

    def find(self, user: str, client_id: str) -> Limit | None:
        """Return the first of the eight possible quotas of a client, in Kafka's order.

        All clients of a user share the user's quota. Only quotas with a client ID, or with the
        default client ID, apply to each client ID separately.
        """
        rates = self._rates
        for user_key in (user, None) if user else (None,):
            if client_id:
                rate = rates.get((user_key, client_id), rates.get((user_key, None)))
                if rate is not None:
                    return Limit(rate, user, client_id)
            rate = rates.get((user_key, _ABSENT))
            if rate is not None:
                return Limit(rate, user, _ABSENT)
        if not client_id:
            return None  # as in Kafka, the default client ID does not cover clients without an ID
        rate = rates.get((_ABSENT, client_id), rates.get((_ABSENT, None)))
        return None if rate is None else Limit(rate, _ABSENT, client_id)


class AddressLimits:
    """The connection rate quotas of IP addresses."""

    def __init__(self) -> None:
        self._rates: dict[str | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._rates)

    def put(self, name: str | None, rate: float | None) -> None:
        """Set the quota of an address or the default (None); the rate None removes it."""
        key = None if name is None else canonical(name)
        if rate is None:
            self._rates.pop(key, None)
        else:
            self._rates[key] = rate

    def find(self, address: str) -> float | None:
        """Return connections per second; None if no quota applies."""
        rate = self._rates.get(canonical(address))
        return self._rates.get(None) if rate is None else rate


def canonical(address: str) -> str:
    """Return the canonical spelling of an IP address."""
    try:
        return str(ip_address(address))
    except ValueError:  # for example an in-process connection
        return address
