"""Config resources: settings that clients describe and alter, by resource type."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kbroker.cluster import EVERY_NODE, ConfigResource, ResourceType, Topic
from kbroker.cluster.model import check_topic_name
from kbroker.config import (
    BROKER_PROPERTIES,
    CLIENT_METRICS_PROPERTIES,
    GROUP_PROPERTIES,
    LISTENER_PREFIX,
    TOPIC_PROPERTIES,
    BrokerConfig,
    Change,
    ClientMetricsConfig,
    ConfigEntry,
    ConfigError,
    Operation,
    Property,
    Value,
    apply_changes,
    describe_broker,
    describe_client_metrics,
    describe_every_broker,
    describe_group,
    describe_log_level,
    describe_topic,
    validate_client_metrics,
    validate_group_configs,
    validate_topic_configs,
)
from kbroker.coordinator import some_of
from kbroker.coordinator.consumer.patterns import MissingPatternEngineError, compile_pattern
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import MAX_STRING_BYTES

from .log_levels import LEVELS, ROOT, levels_in_effect, loggers, own_levels, set_levels

if TYPE_CHECKING:
    from kbroker.node.node import Node
    from kbroker.runtime.time_slices import TimeSlice

logger = logging.getLogger(__name__)

LIMIT_PER_IP = "max.connections.per.ip"
# Settings that clients cannot set to 0.
CONNECTION_LIMITS = ("max.connections", LIMIT_PER_IP, "max.connection.creation.rate")
# Maximum number of bytes of the name and settings of a group or client metrics subscription.
NAMED_BYTES_MAX = 8192


class Resource:
    """A resource with settings. Subclasses define where settings are stored and which are valid.

    Attributes:
        properties: Known settings.
        replaceable: True if AlterConfigs, which replaces all settings, is allowed.
    """

    properties: Mapping[str, Property[Value]]
    replaceable = True

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    def entries(self) -> list[ConfigEntry]:
        """Return every setting as in DescribeConfigs."""
        raise NotImplementedError

    def entries_key(self) -> Hashable:
        """Return a key that is equal for resources of this type with the same entries."""
        return self.name

    def own(self) -> Mapping[str, str]:
        """Return the settings that are set on this resource itself."""
        raise NotImplementedError

    def check_changes(self, changes: Iterable[Change]) -> None:
        """Check each change by itself, before `check` checks the resulting settings.

        Raises:
            KafkaError: A change is invalid.
        """

    def check(self, values: Mapping[str, str]) -> None:
        """Check the resulting settings.

        Raises:
            ConfigError: A setting is invalid.
            KafkaError: The resource cannot have these settings.
        """
        raise NotImplementedError

    async def store(self, values: dict[str, str], cause: str) -> bool:
        """Replace the settings durably. Return False if another request changed them first."""
        raise NotImplementedError


class StoredResource(Resource):
    """A resource whose settings are stored in the cluster metadata, by type and name."""

    type: ResourceType

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(node, name)
        self.resource = ConfigResource(self.type, name)

    def own(self) -> Mapping[str, str]:
        return self.node.cluster.own_configs(self.resource)

    async def store(self, values: dict[str, str], cause: str) -> bool:
        return await self.node.cluster.alter_configs(self.resource, values, cause=cause)


class TopicResource(Resource):
    """Settings of a topic. As in Kafka, invalid settings are reported before a missing topic."""

    properties = TOPIC_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(node, name)
        self._found = node.cluster.topics.get(name)

    @property
    def _topic(self) -> Topic:
        """The topic.

        Raises:
            KafkaError: The name is invalid, or the topic does not exist.
        """
        if self._found is None:
            check_topic_name(self.name)
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{self.name}' does not exist."
            )
        return self._found

    def entries(self) -> list[ConfigEntry]:
        return describe_topic(self._topic.configs, self.node.config)

    def entries_key(self) -> Hashable:
        return frozenset(self._topic.configs.items())

    def own(self) -> Mapping[str, str]:
        topic = self._found
        return {} if topic is None else self.node.partitions.topic_config(topic).overrides

    def check(self, values: Mapping[str, str]) -> None:
        check_topic_name(self.name)
        validate_topic_configs(values, self.node.config)
        _ = self._topic

    async def store(self, values: dict[str, str], cause: str) -> bool:
        return await self.node.cluster.alter_topic_configs(self._topic, values, cause=cause)


class BrokerResource(StoredResource):
    """Settings of this node, or cluster-wide defaults if the name is empty.

    Raises:
        KafkaError: The name is the ID of another node.
    """

    type = ResourceType.BROKER
    properties = BROKER_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        if name != EVERY_NODE:
            _check_is_this_node(node, name, "or empty string, ")
        super().__init__(node, name)

    def entries(self) -> list[ConfigEntry]:
        config = self.node.config
        return describe_every_broker(config) if self.name == EVERY_NODE else describe_broker(config)

    def check(self, values: Mapping[str, str]) -> None:
        source = dict(self.node.context.live_config.resources)[self.resource]
        try:
            config = self.node.config.overlay(values, origin="set by clients", source=source)
            self._check_connection_limits(values, config)
            self.node.check_settings(config)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _check_connection_limits(self, values: Mapping[str, str], config: BrokerConfig) -> None:
        """Reject limits of 0: no client could connect any more to change them.

        Raises:
            ConfigError: A limit is 0.
        """
        for name, value in values.items():
            limit = name
            if name.startswith(LISTENER_PREFIX):
                limit = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
            excepted = limit == LIMIT_PER_IP and bool(config.max_connections_per_ip_overrides)
            if limit in CONNECTION_LIMITS and _parse_integer(value) == 0 and not excepted:
                raise ConfigError(f"{name}: no client could connect with 0; use at least 1")

    async def store(self, values: dict[str, str], cause: str) -> bool:
        is_stored = await super().store(values, cause)
        for security in self.node.listener_security:
            await security.wait_until_applied()
        return is_stored


class LoggerResource(Resource):
    """Log levels of this node's process.

    Raises:
        KafkaError: The name is the ID of another node.
    """

    properties: Mapping[str, Property[Value]] = {}
    replaceable = False

    def __init__(self, node: Node, name: str) -> None:
        _check_is_this_node(node, name, "")
        super().__init__(node, name)

    def entries(self) -> list[ConfigEntry]:
        return [describe_log_level(*each) for each in levels_in_effect().items()]

    def own(self) -> Mapping[str, str]:
        return own_levels()

    def check_changes(self, changes: Iterable[Change]) -> None:
        known = loggers()
        for name, operation, value in changes:
            if operation not in (Operation.SET, Operation.DELETE):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{operation.name} operation is not allowed for the BROKER_LOGGER resource",
                )
            if name not in known:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
            if operation is Operation.SET and value not in LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid log level {value!r} of {name} (valid: {', '.join(LEVELS)})",
                )
            if operation is Operation.DELETE and name == ROOT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Removing the log level of the root logger is not allowed",
                )

    def check(self, values: Mapping[str, str]) -> None:
        """Do nothing: `check_changes` has checked everything."""

    async def store(self, values: dict[str, str], cause: str) -> bool:
        set_levels(values)
        return True


class NamedResource(StoredResource):
    """A resource that clients create by setting its configs. Number and size are limited.

    Attributes:
        count_max: Maximum number of resources of this type with settings.
    """

    count_max: int

    def check_changes(self, changes: Iterable[Change]) -> None:
        """Reject APPEND and SUBTRACT, as Kafka does even for lists."""
        for name, operation, _ in changes:
            if operation in (Operation.APPEND, Operation.SUBTRACT):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {operation.name} to key {name} of this resource type; use SET",
                )

    def check(self, values: Mapping[str, str]) -> None:
        size = len(self.name.encode()) + sum(
            len(name.encode()) + len(value.encode()) for name, value in values.items()
        )
        if size > NAMED_BYTES_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Name and settings have {size} bytes; at most {NAMED_BYTES_MAX} are allowed",
            )
        cluster = self.node.cluster
        if values and self.resource not in cluster.configs:
            count = sum(each.type is self.type for each in cluster.configs)
            if count >= self.count_max:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{count} resources of this type have settings, which is the limit; delete "
                    "the settings of unused resources",
                )


class GroupResource(NamedResource):
    """Settings of a group, which need not exist yet."""

    type = ResourceType.GROUP
    count_max = 10_000
    properties = GROUP_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        super().__init__(node, name)

    def entries(self) -> list[ConfigEntry]:
        return describe_group(self.own(), self.node.config)

    def entries_key(self) -> Hashable:
        return frozenset(self.own().items())

    def check(self, values: Mapping[str, str]) -> None:
        super().check(values)
        validate_group_configs(values, self.node.config)


class ClientMetricsResource(NamedResource):
    """A client metrics subscription (KIP-714)."""

    type = ResourceType.CLIENT_METRICS
    count_max = 1_000
    properties = CLIENT_METRICS_PROPERTIES

    def __init__(self, node: Node, name: str) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        super().__init__(node, name)

    def entries(self) -> list[ConfigEntry]:
        return describe_client_metrics(self.own(), self.node.config)

    def entries_key(self) -> Hashable:
        return frozenset(self.own().items())

    def check(self, values: Mapping[str, str]) -> None:
        super().check(values)
        for name in values:
            if name not in self.properties:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}"
                )
        _check_push_interval(values)
        validate_client_metrics(values, self.node.config)
        for item in filter(None, ClientMetricsConfig(values, self.node.config).match):
            try:
                compile_pattern(item.partition("=")[2])
            except MissingPatternEngineError as error:
                raise ConfigError(str(error)) from None
            except KafkaError:
                raise ConfigError(f"Illegal client matching pattern: {item}") from None


def _check_push_interval(values: Mapping[str, str]) -> None:
    """Reject a push interval that is out of range, with Kafka's error for it."""
    interval = CLIENT_METRICS_PROPERTIES["interval.ms"]
    number = _parse_integer(values.get(interval.name, ""))
    low, high = interval.minimum, interval.maximum
    if number is not None and low is not None and high is not None and not low <= number <= high:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {number} of {interval.name}: expected {low:.0f} to {high:.0f} ms",
        )


def _parse_integer(value: str) -> int | None:
    """Return the number of a setting, or None if the value is not an integer."""
    return int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value) else None


def _check_is_this_node(node: Node, name: str, other_name: str) -> None:
    if not name.removeprefix("-").isdecimal():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if name != str(node.id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node.id} {other_name}but received {name}",
        )


# Resource types in the order of Kafka's responses.
_LISTED_TYPES = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


async def list_resources(
    node: Node, types: Iterable[int], time_slice: TimeSlice
) -> Iterator[ConfigResource]:
    """Return an iterator over topics and brokers, and over groups and subscriptions with settings.

    Args:
        node: The node.
        types: Resource types to list; all if empty.
        time_slice: Time slice of the connection.

    Raises:
        KafkaError: UNSUPPORTED_VERSION: a type does not exist.
    """
    types = set(types)
    if not types <= set(_LISTED_TYPES):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "unknown resource type")
    cluster = node.cluster
    nodes = [str(each) for each in cluster.node_ids]
    names: dict[ResourceType, Iterable[str]] = {
        each: await time_slice.in_order(tuple(cluster.configs), partial(_name_of, each))
        for each in (ResourceType.GROUP, ResourceType.CLIENT_METRICS)
    }
    names |= {
        ResourceType.BROKER_LOGGER: nodes,
        ResourceType.BROKER: nodes,
        ResourceType.TOPIC: await time_slice.in_order(tuple(cluster.topics), str),
    }
    wanted = [each for each in _LISTED_TYPES if not types or each in types]
    return (ConfigResource(each, name) for each in wanted for name in names[each])


def _name_of(resource_type: ResourceType, resource: ConfigResource) -> str | None:
    return resource.name if resource.type is resource_type else None


def find_resource(node: Node, resource_type: int, name: str) -> Resource:
    """Return the resource that a request names.

    Raises:
        KafkaError: The type is unknown or the name is invalid, with Kafka's error.
    """
    find = _RESOURCE_CLASSES.get(resource_type)
    if find is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return find(node, name)


_RESOURCE_CLASSES: dict[int, Callable[[Node, str], Resource]] = {
    ResourceType.TOPIC: TopicResource,
    ResourceType.BROKER: BrokerResource,
    ResourceType.BROKER_LOGGER: LoggerResource,
    ResourceType.GROUP: GroupResource,
    ResourceType.CLIENT_METRICS: ClientMetricsResource,
}


async def change_settings(
    resource: Resource, changes: Iterable[Change], *, validate_only: bool, cause: str
) -> None:
    """Change single settings of a resource, all or none (IncrementalAlterConfigs).

    Raises:
        KafkaError: A change is invalid, or the metadata cannot be changed.
    """
    changes = tuple(changes)
    resource.check_changes(changes)
    await _alter(
        resource,
        lambda own: apply_changes(own, changes, resource.properties),
        validate_only=validate_only,
        cause=cause,
    )


async def replace_settings(
    resource: Resource, values: Mapping[str, str], *, validate_only: bool, cause: str
) -> None:
    """Replace all settings of a resource (AlterConfigs).

    Raises:
        KafkaError: A setting is invalid, or the metadata cannot be changed.
    """
    if not resource.replaceable:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "these settings cannot be replaced as a whole; use IncrementalAlterConfigs",
        )
    await _alter(resource, lambda own: dict(values), validate_only=validate_only, cause=cause)


# Maximum number of settings of one resource; they are kept in memory.
SETTINGS_MAX = 1000


def _check_size(values: Mapping[str, str]) -> None:
    if len(values) > SETTINGS_MAX:
        raise ConfigError(f"A resource has at most {SETTINGS_MAX} settings")
    for name, value in values.items():
        if len(value.encode()) > MAX_STRING_BYTES:
            raise ConfigError(f"The value of {name} has more than {MAX_STRING_BYTES} bytes")


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
            _check_size(values)
            resource.check(values)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if validate_only or values == own:
            return
        changed = sorted(name for name, _ in dict(own).items() ^ values.items())
        if await resource.store(values, cause):
            logger.info("%s of %r: %s", cause, resource.name, some_of([*dict.fromkeys(changed)]))
            return
