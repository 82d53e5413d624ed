"""Settings as clients ask for them and change them, by the kind of resource that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from kbroker.cluster import EVERY_NODE, ConfigResource, ResourceType
from kbroker.cluster.model import check_topic_name
from kbroker.protocol.errors import ErrorCode, KafkaError

from .config import (
    BROKER_PROPERTIES,
    TOPIC_PROPERTIES,
    Change,
    ConfigEntry,
    ConfigError,
    Property,
    ReadOnlyError,
    altered,
    describe_broker,
    describe_every_broker,
    describe_topic,
    validate_topic_configs,
)

if TYPE_CHECKING:
    from .node import Node


class Resource(Protocol):
    """One thing that has settings."""

    properties: Mapping[str, Property]

    def entries(self) -> list[ConfigEntry]:
        """Every setting as DescribeConfigs shows it."""
        ...

    def own(self) -> Mapping[str, str]:
        """The settings that were given to this very resource."""
        ...

    def check(self, values: Mapping[str, str]) -> None:
        """Raise ConfigError or KafkaError unless the resource may have these settings."""
        ...

    async def store(self, values: dict[str, str], cause: str) -> bool:
        """Replace the settings at once and durably; False when they changed in between."""
        ...


class TopicResource:
    """The settings of a topic. Raises KafkaError for a topic that does not exist."""

    properties = TOPIC_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        check_topic_name(name)
        topic = node.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._node = node
        self._topic = topic

    def entries(self) -> list[ConfigEntry]:
        return describe_topic(self._topic.configs, self._node.config)

    def own(self) -> Mapping[str, str]:
        return self._topic.configs

    def check(self, values: Mapping[str, str]) -> None:
        validate_topic_configs(values, self._node.config)

    async def store(self, values: dict[str, str], cause: str) -> bool:
        return await self._node.cluster.alter_topic_configs(self._topic.name, values, cause=cause)


class BrokerResource:
    """The settings of this node; the empty name stands for those of all nodes.

    Raises KafkaError for another node.
    """

    properties = BROKER_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        if name not in (EVERY_NODE, str(node.id)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {node.id}, not {name!r}")
        self._node = node
        self._resource = ConfigResource(ResourceType.BROKER, name)

    def entries(self) -> list[ConfigEntry]:
        config = self._node.config
        every_node = self._resource.name == EVERY_NODE
        return describe_every_broker(config) if every_node else describe_broker(config)

    def own(self) -> Mapping[str, str]:
        return self._node.cluster.own_configs(self._resource)

    def check(self, values: Mapping[str, str]) -> None:
        source = dict(self._node.dynamic_resources())[self._resource]
        try:
            self._node.config.overlay(values, origin="set by clients", source=source)
        except ReadOnlyError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    async def store(self, values: dict[str, str], cause: str) -> bool:
        return await self._node.cluster.alter_configs(self._resource, values, cause=cause)


def find_resource(node: Node, resource_type: int, name: str) -> Resource:
    """The resource that a request names. Raises KafkaError as Kafka answers."""
    find = _KINDS.get(resource_type)
    if find is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return find(node, name)


_KINDS: dict[int, Callable[[Node, str], Resource]] = {
    ResourceType.TOPIC: TopicResource,
    ResourceType.BROKER: BrokerResource,
}


async def change_settings(
    resource: Resource, changes: Iterable[Change], *, validate_only: bool, cause: str
) -> None:
    """Change single settings of a resource, all or none. Raises KafkaError."""
    changes = tuple(changes)
    await _alter(
        resource,
        lambda own: altered(own, changes, resource.properties),
        validate_only=validate_only,
        cause=cause,
    )


async def replace_settings(
    resource: Resource, values: Mapping[str, str], *, validate_only: bool, cause: str
) -> None:
    """Give a resource these settings and no others. Raises KafkaError."""
    await _alter(resource, lambda own: dict(values), validate_only=validate_only, cause=cause)


async def _alter(
    resource: Resource,
    wanted: Callable[[Mapping[str, str]], dict[str, str]],
    *,
    validate_only: bool,
    cause: str,
) -> None:
    while True:
        own = resource.own()
        try:
            values = wanted(own)
            resource.check(values)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if validate_only or values == own or await resource.store(values, cause):
            return
