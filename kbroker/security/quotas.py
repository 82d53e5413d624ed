"""What clients may take of a broker: who is meant, how much, and which of several rules counts.

A quota is for a user, a client id, both together, or an address, each by name or as the default for all
that have none (KIP-55, KIP-124, KIP-599, KIP-612).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import NamedTuple, TypeAlias

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The types of what a quota may be for, as they travel."""
ENTITY_TYPES = (USER, CLIENT_ID, IP)

Entity: TypeAlias = Mapping[str, str | None]
"""Whom a quota is for: names by type; None is the default of a type."""


class QuotaKey(StrEnum):
    """What there are quotas for, as it travels."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes per second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes per second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Hundredths of the time of one thread."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions that are made and deleted, per second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Connections per second."""


_LARGEST = {
    QuotaKey.PRODUCER_BYTE_RATE: 2.0**63,
    QuotaKey.CONSUMER_BYTE_RATE: 2.0**63,
    QuotaKey.CONNECTION_CREATION_RATE: 2.0**31 - 1,
}
"""Of those that are whole numbers."""
_FRACTION = 1e-6
"""What is no more beside a whole number is not seen, as in Kafka."""

_ABSENT = ""
"""Stands for a user or a client id that a rule does not name; no rule is for an empty name."""


def text_of(entity: Entity) -> str:
    """An entity for people."""
    return ",".join(
        f"{kind}={'<default>' if name is None else name}" for kind, name in entity.items()
    )


class BadQuota(ValueError):
    """A quota that cannot be; the message says why."""


def check_entity(entity: Entity) -> None:
    """Raise BadQuota for who cannot have a quota."""
    if not entity:
        raise BadQuota("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in ENTITY_TYPES:
            raise BadQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise BadQuota(f"Empty {kind} not supported")
    if IP in entity:
        if len(entity) > 1:
            raise BadQuota("A quota of an ip is of nothing else: leave user and client-id out")
        check_address(entity[IP])


def check_address(name: str | None) -> None:
    """Raise BadQuota for what is no address; None is the default for all."""
    try:
        if name is not None:
            ip_address(name)
    except ValueError:
        raise BadQuota(f"{name} is not a valid IP; names of hosts are not looked up") from None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise BadQuota for a number that an entity cannot have under a key."""
    is_key = key in [*QuotaKey] and (IP in entity) == (key == QuotaKey.CONNECTION_CREATION_RATE)
    if not is_key:
        raise BadQuota(f"Invalid configuration key {key}")
    if not 0 < value < math.inf:
        raise BadQuota(f"Quota {key} must be greater than 0, and finite")
    largest = _LARGEST.get(QuotaKey(key))
    if largest is None:
        return
    if value > largest:
        raise BadQuota(f"Proposed value for {key} is too large")
    if value % 1.0 > _FRACTION:
        raise BadQuota(f"{key} cannot be a fractional value")


class Limit(NamedTuple):
    """How much one may take, and who takes it together: what is empty says nothing."""

    rate: float
    user: str
    client_id: str


class Limits:
    """All quotas of one key, by who they are for."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str | None, str | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._rates)

    def put(self, entity: Entity, rate: float | None) -> None:
        """Set a quota; None takes it away."""
        place = entity.get(USER, _ABSENT), entity.get(CLIENT_ID, _ABSENT)
        if rate is None:
            self._rates.pop(place, None)
        else:
            self._rates[place] = rate

    def find(self, user: str, client_id: str) -> Limit | None:
        """The first of the eight that there may be for a client, in Kafka's order.

        Who has one of a user shares it with all of that user's clients; only a rule that names
        client ids, or all of them, has each of them by itself.
        """
        rates = self._rates
        for of_user in (user, None) if user else (None,):
            if client_id:
                rate = rates.get((of_user, client_id), rates.get((of_user, None)))
                if rate is not None:
                    return Limit(rate, user, client_id)
            rate = rates.get((of_user, _ABSENT))
            if rate is not None:
                return Limit(rate, user, _ABSENT)
        if not client_id:
            return None  # as in Kafka, the default for client ids is not for clients without one
        rate = rates.get((_ABSENT, client_id), rates.get((_ABSENT, None)))
        return None if rate is None else Limit(rate, _ABSENT, client_id)


class AddressLimits:
    """The quotas of addresses."""

    def __init__(self) -> None:
        self._rates: dict[str | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._rates)

    def put(self, name: str | None, rate: float | None) -> None:
        """Set the quota of an address, or with None the default; without a rate take it away."""
        place = None if name is None else canonical(name)
        if rate is None:
            self._rates.pop(place, None)
        else:
            self._rates[place] = rate

    def find(self, address: str) -> float | None:
        """Connections per second; None where nothing is said."""
        rate = self._rates.get(canonical(address))
        return self._rates.get(None) if rate is None else rate


def canonical(address: str) -> str:
    """An address in the one spelling that it has here."""
    try:
        return str(ip_address(address))
    except ValueError:  # of a connection in memory, say
        return address
