"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from .cluster import ClusterClient
from .connection import Connection
from .errors import check


class Resource(IntEnum):
    """What a setting can belong to (KIP-226, KIP-1043)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Operation(IntEnum):
    """What can be done to a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


DEFAULT_SOURCE = 5
"""Where a setting comes from that nobody has set (KIP-226)."""
OWN_SOURCES = frozenset({1, 2, 8})
"""Where a setting of the resource itself comes from: topic, broker, group (KIP-226)."""


class Synonym(NamedTuple):
    """A place that a setting can come from; the first one that is set wins."""

    name: str
    value: str | None
    source: int


class Setting(NamedTuple):
    """One setting as a broker describes it; `value` is None where it is secret or not set."""

    name: str
    value: str | None
    source: int
    read_only: bool
    """Whether only a start of the broker can change it."""
    sensitive: bool
    synonyms: Sequence[Synonym] = ()
    doc: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether it was set on the resource itself."""
        return self.source in OWN_SOURCES

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source == DEFAULT_SOURCE


async def describe_configs(
    cluster: ClusterClient,
    kind: Resource,
    names: Iterable[str],
    *,
    synonyms: bool = False,
    docs: bool = False,
) -> dict[str, list[Setting]]:
    """All settings of some resources of one kind, by name; with `synonyms` their places too, with
    `docs` what they are for.

    Raises KafkaError.
    """
    rows = [
        DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name) for name in names
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
                [Synonym(each.name, each.value, each.source) for each in row.synonyms],
                row.documentation,
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
    """Change single settings of a resource. Raises KafkaError."""
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


async def _connection(cluster: ClusterClient, kind: Resource, names: list[str]) -> Connection:
    """Settings of one broker are known to that broker; all others to the controller."""
    if kind == Resource.BROKER and len(names) == 1 and names[0]:
        return await cluster.node(int(names[0]))
    return await cluster.controller()
