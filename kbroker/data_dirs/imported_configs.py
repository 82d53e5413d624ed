"""Import of settings from the metadata log of a stopped Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kbroker.cluster import EVERY_NODE, Cluster, ConfigResource, ResourceType
from kbroker.config import (
    BROKER_PROPERTIES,
    BrokerConfig,
    ClientMetricsConfig,
    ConfigError,
    GroupConfig,
    Source,
    validate_topic_configs,
)
from kbroker.protocol.metadata_log import ConfigRecord

# Types whose settings are imported. Log levels of brokers are not: they name classes of Kafka.
_IMPORTED_TYPES = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


@dataclass(slots=True)
class ImportedConfigs:
    """Settings of topics, brokers, groups and metrics subscriptions after the replay of records."""

    resources: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)

    def replay(self, record: ConfigRecord) -> None:
        """Apply one record."""
        if record.resource_type not in _IMPORTED_TYPES:
            return
        resource = ConfigResource(ResourceType(record.resource_type), record.resource_name)
        values = self.resources.setdefault(resource, {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if not values:
            del self.resources[resource]

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """Return the settings of one resource."""
        return self.resources.get(ConfigResource(kind, name), {})

    def remove_unsupported(self, topics: Iterable[str], brokers: Iterable[str]) -> Iterator[str]:
        """Remove what cannot be imported; yield a sentence about each omitted setting.

        Args:
            topics: Imported topics.
            brokers: IDs of the brokers whose directories are imported. The settings of a single one
                become those of the new node.
        """
        names = {ResourceType.TOPIC: {*topics}, ResourceType.BROKER: {EVERY_NODE, *brokers}}
        is_sole = len(names[ResourceType.BROKER]) == 2
        for resource, values in [*self.resources.items()]:
            kind, name = resource
            if name not in names.get(kind, {name}):
                del self.resources[resource]
                continue
            if kind is ResourceType.BROKER and name != EVERY_NODE and not is_sole:
                del self.resources[resource]
                yield f"settings of broker {name}: the directories of several brokers become one"
                continue
            for key, error in _rejected(kind, name, values):
                yield f"{_shown(kind, key, values.pop(key))} of {_described(kind, name)}: {error}"
            if not values:
                del self.resources[resource]

    async def write(self, cluster: Cluster, node_id: int, *, cause: str) -> None:
        """Write all settings but those of topics to the metadata of a cluster.

        Raises:
            KafkaError: A limit of the cluster is exceeded.
        """
        for (kind, name), values in self.resources.items():
            if kind is ResourceType.TOPIC:
                continue
            is_node = kind is ResourceType.BROKER and name != EVERY_NODE
            resource = ConfigResource(kind, str(node_id) if is_node else name)
            if cluster.own_configs(resource) != values:
                await cluster.alter_configs(resource, dict(values), cause=cause)


def _rejected(
    kind: ResourceType, name: str, values: Mapping[str, str]
) -> list[tuple[str, ConfigError]]:
    """Return the settings that are unknown or invalid."""
    found = []
    for key, value in values.items():
        try:
            _CHECKS[kind](name, {key: value})
        except ConfigError as error:
            found.append((key, error))
    return found


def _check_topic(_name: str, values: Mapping[str, str]) -> None:
    validate_topic_configs(values, BrokerConfig())


def _check_broker(name: str, values: Mapping[str, str]) -> None:
    source = Source.DYNAMIC_BROKER if name else Source.DYNAMIC_DEFAULT_BROKER
    BrokerConfig().overlay(values, origin="imported", source=source)


def _check_group(_name: str, values: Mapping[str, str]) -> None:
    # The limits of the broker are settings of its own, which may still follow.
    GroupConfig(values, BrokerConfig())


def _check_subscription(_name: str, values: Mapping[str, str]) -> None:
    ClientMetricsConfig(values, BrokerConfig())


_CHECKS: Mapping[ResourceType, Callable[[str, Mapping[str, str]], None]] = {
    ResourceType.TOPIC: _check_topic,
    ResourceType.BROKER: _check_broker,
    ResourceType.GROUP: _check_group,
    ResourceType.CLIENT_METRICS: _check_subscription,
}


def _shown(kind: ResourceType, key: str, value: str) -> str:
    """Return a setting as text; the value of a broker setting that may be secret is hidden."""
    known = BROKER_PROPERTIES.get(key)
    is_secret = kind is ResourceType.BROKER and (known is None or known.sensitive)
    return f"{key}=(hidden)" if is_secret else f"{key}={value}"


def _described(kind: ResourceType, name: str) -> str:
    if kind is ResourceType.BROKER:
        return f"broker {name}" if name else "all brokers"
    prefix = {ResourceType.GROUP: "group ", ResourceType.CLIENT_METRICS: "subscription "}
    return prefix.get(kind, "") + name
