"""Configurations of topics, brokers, broker loggers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from .cluster import ClusterClient, did_you_mean
from .connection import Connection
from .errors import ClientError, check


class Resource(IntEnum):
    """Resource types that have configurations (KIP-226, KIP-1043)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class Operation(IntEnum):
    """Operations on a configuration (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# Config source of a default value (KIP-226).
DEFAULT_SOURCE = 5
# Config source of a value set on a resource of each type itself (KIP-226).
OWN_SOURCES: Final = MappingProxyType(
    {
        Resource.TOPIC: 1,
        Resource.BROKER: 2,
        Resource.BROKER_LOGGER: 6,
        Resource.GROUP: 8,
    }
)
# Config source of a value set on all brokers.
ALL_BROKERS_SOURCE = 3


class Synonym(NamedTuple):
    """One source of a configuration value; the first one that is set takes effect."""

    name: str
    value: str | None
    source: int


class Setting(NamedTuple):
    """One configuration as a broker describes it.

    Attributes:
        value: The effective value, or None if it is sensitive or unset.
        source: Config source (KIP-226).
        read_only: True if a change requires a restart of the broker.
        is_own: True if the value is set on the resource itself.
        type: Config type (KIP-569); 0 if the broker does not report it.
    """

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    is_own: bool
    synonyms: Sequence[Synonym] = ()
    doc: str | None = None
    type: int = 0

    @property
    def is_default(self) -> bool:
        """True if the value is the built-in default."""
        return self.source == DEFAULT_SOURCE


def own_source(kind: Resource, name: str) -> int:
    """Return the config source of values that are set on a resource itself (KIP-226).

    Args:
        kind: Resource type.
        name: Resource name; empty for all brokers.
    """
    if kind == Resource.BROKER and not name:
        return ALL_BROKERS_SOURCE
    return OWN_SOURCES[kind]


async def describe_configs(
    cluster: ClusterClient,
    kind: Resource,
    names: Iterable[str],
    *,
    keys: Sequence[str] | None = None,
    synonyms: bool = False,
    docs: bool = False,
) -> dict[str, list[Setting]]:
    """Return the configurations of resources of one type.

    Args:
        cluster: The cluster to query.
        kind: Resource type.
        names: Resource names.
        keys: Names of the configurations, or None for all.
        synonyms: Include the config sources of each value.
        docs: Include the documentation of each configuration.

    Returns:
        The configurations by resource name.

    Raises:
        KafkaError: The broker rejects a resource.
    """
    rows = [
        DescribeConfigsRequest.Resource(
            resource_type=kind,
            resource_name=name,
            configuration_keys=None if keys is None else list(keys),
        )
        for name in names
    ]
    connection = await _connection(cluster, kind, [row.resource_name for row in rows])
    request = DescribeConfigsRequest(
        resources=rows, include_synonyms=synonyms, include_documentation=docs
    )
    answer = await connection.ask(request, oldest=1)
    described = {}
    for result in answer.results:
        check(result.error_code, result.error_message)
        described[result.resource_name] = [
            Setting(
                row.name,
                row.value,
                row.config_source,
                row.read_only,
                row.is_sensitive,
                row.config_source == own_source(kind, result.resource_name),
                [Synonym(each.name, each.value, each.source) for each in row.synonyms],
                row.documentation,
                row.config_type,
            )
            for row in result.configs
        ]
    return described


async def alter_configs(
    cluster: ClusterClient,
    kind: Resource,
    name: str,
    changes: Mapping[str, tuple[Operation, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change individual configurations of a resource.

    Args:
        cluster: The cluster to change.
        kind: Resource type.
        name: Resource name.
        changes: Operation and value by configuration name.
        validate_only: Check the change without applying it.

    Raises:
        KafkaError: The broker rejects the change.
    """
    rows = [
        IncrementalAlterConfigsRequest.Config(name=key, config_operation=operation, value=value)
        for key, (operation, value) in changes.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configs=rows
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    answer = await (await _connection(cluster, kind, [name])).ask(request)
    (result,) = answer.responses
    check(result.error_code, result.error_message)


def check_changeable(name: str, known: Mapping[str, Setting], operation: Operation) -> None:
    """Raise ClientError for a read-only broker setting, and for an unknown one, which Kafka would store.

    Args:
        name: Name of the setting.
        known: All settings of a broker by name.
        operation: The operation on the setting.
    """
    # DescribeConfigs reports listener settings as read-only, but they can be changed.
    is_listener_setting = name.startswith("listener.name.")
    if name in known and known[name].read_only and not is_listener_setting:
        raise ClientError(
            f"{name} is read-only: a broker reads it at its start; set it in the broker's "
            "configuration file or flags and restart the broker",
            hint=f"see `kbroker config explain {name}`",
        )
    if operation == Operation.SET and name not in known and not is_listener_setting:
        raise ClientError(
            f"unknown broker setting {name!r}{did_you_mean(name, known)}",
            hint="`kbroker config show --node ID` lists all settings",
        )


async def _connection(cluster: ClusterClient, kind: Resource, names: list[str]) -> Connection:
    """Return the connection for a config request: a single broker's own, else the controller's."""
    of_broker = kind in (Resource.BROKER, Resource.BROKER_LOGGER)
    if of_broker and len(names) == 1 and names[0]:
        return await cluster.node(int(names[0]))
    return await cluster.controller()
