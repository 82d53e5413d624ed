"""Validated settings of a node and of a topic, each with its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Self

from .broker_table import RACK_AWARE_SELECTOR, BrokerSettings
from .entry import ConfigEntry
from .kafka_environment import with_listeners
from .kafka_only import LISTENER_PREFIX, find_kafka_only
from .property import ConfigError, Scope, SettingEffect, Settings, Source, Value
from .sources import ConfigLayer, read_environment, read_file, read_options
from .tables import (
    BROKER_PROPERTIES,
    PROPERTIES,
    effect_of,
    find_property,
    unknown_name_error,
)
from .topic_table import TopicSettings

_SOURCE_PRIORITY = (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER, Source.STATIC_BROKER)


# Origin of the layer of ``KAFKA_*`` variables.
KAFKA_ORIGIN = "KAFKA_* environment"
# Kafka's timeouts, which are the defaults if nodes run in separate processes.
_SEPARATE_PROCESS_DEFAULTS = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


class ConfigNotice(NamedTuple):
    """A message to log about a valid configuration."""

    level: Literal["info", "warning"]
    text: str


class BrokerConfig(BrokerSettings):
    """The broker settings of one node. Immutable: ``overlay`` returns a new object.

    Args:
        layers: Sources of settings, highest priority first. Dynamic layers take precedence over all
            static ones, in any order.
        nodes: Number of nodes of the cluster, on which some defaults depend.
        strict: Reject unknown names and settings whose feature is not implemented.

    Raises:
        ConfigError: Settings are invalid; the message lists all of them, one per line.
    """

    __slots__ = (
        "_connections_max",
        "_parsed",
        "layers",
        "nodes",
        "notices",
        "strict",
        "topic_defaults",
    )

    def __init__(
        self, layers: Iterable[ConfigLayer] = (), *, nodes: int = 1, strict: bool = False
    ) -> None:
        ordered = sorted(
            map(_with_both_ids, layers), key=lambda each: _SOURCE_PRIORITY.index(each.source)
        )
        self.layers: tuple[ConfigLayer, ...] = tuple(ordered)
        self.nodes = nodes
        self.strict = strict
        self._parsed: dict[str, Value] = {**_defaults(nodes), **_parsed(self.layers)}
        self._connections_max = _limits_by_host(self.max_connections_per_ip_overrides)
        self.notices: tuple[ConfigNotice, ...] = _notices(self)
        # Entries of a topic without its own settings, cached by `describe_topic`.
        self.topic_defaults: tuple[ConfigEntry, ...] | None = None
        _check_combinations(self)

    @classmethod
    def load(
        cls,
        *,
        options: Iterable[str] | Mapping[str, str] = (),
        environ: Mapping[str, str] | None = None,
        kafka_values: Mapping[str, str] | None = None,
        file: Path | None = None,
        nodes: int = 1,
        strict: bool = False,
    ) -> BrokerConfig:
        """Read the settings from options, environment and file, in this order of priority.

        Args:
            options: ``key=value`` strings or a mapping.
            environ: Environment variables, of which ``KBROKER_CFG_*`` are read.
            kafka_values: Settings from ``KAFKA_*`` variables.
            file: Properties or TOML file.
            nodes: Number of nodes of the cluster.
            strict: Reject unknown names and settings whose feature is not implemented.

        Raises:
            ConfigError: A source cannot be read, or a setting is invalid.
        """
        given = dict(options) if isinstance(options, Mapping) else read_options(options)
        layers = [ConfigLayer("option", given)]
        if environ is not None:
            layers.append(ConfigLayer("environment", read_environment(environ)))
        if file is not None:
            layers.append(ConfigLayer(str(file), read_file(file)))
        if kafka_values:
            values = with_listeners(dict(kafka_values), (each.values for each in layers))
            layers.insert(-1 if file else len(layers), ConfigLayer(KAFKA_ORIGIN, values))
        return cls(layers, nodes=nodes, strict=strict)

    def overlay(
        self, values: Mapping[str, str], *, origin: str, source: Source = Source.STATIC_BROKER
    ) -> BrokerConfig:
        """Return the settings with a layer of ``values`` on top of the layers of ``source``.

        If ``source`` is dynamic, the values replace the dynamic layer of that source.

        Raises:
            ConfigError: A value is invalid, or not dynamic although ``source`` is.
        """
        if source is not Source.STATIC_BROKER:
            _check_dynamic(values, source)
        kept = [each for each in self.layers if each.source is not source or _is_static(each)]
        layers = [ConfigLayer(origin, dict(values), source), *kept]
        return BrokerConfig(layers, nodes=self.nodes, strict=self.strict)

    def for_node(self, node_id: int, nodes: int, *, rack: str | None = None) -> BrokerConfig:
        """Return the settings for one of ``nodes`` nodes in a process.

        If ``rack`` is None, the node gets the configured rack.
        """
        values = {"node.id": str(node_id)} | ({} if rack is None else {"broker.rack": rack})
        own = ConfigLayer("node of this process", values)
        return BrokerConfig([own, *self.layers], nodes=nodes, strict=self.strict)

    def for_separate_processes(self) -> BrokerConfig:
        """Return the settings for a node whose cluster has nodes in other processes.

        The default timeouts are Kafka's, because a separate process, its machine or the network may
        pause for longer than a node within this process.
        """
        own = ConfigLayer("nodes in separate processes", _SEPARATE_PROCESS_DEFAULTS)
        return BrokerConfig([*self.layers, own], nodes=self.nodes, strict=self.strict)

    def __getitem__(self, name: str) -> Value:
        return self._parsed[name]

    def is_default(self, name: str) -> bool:
        """Return True if ``name`` has its default value, even if it was set explicitly."""
        each = BROKER_PROPERTIES.get(name)
        default = each.default_for(self.nodes) if each else None
        return each is not None and each.format(self[name]) == default

    def origin(self, name: str) -> str | None:
        """Return the origin of the value of ``name``, or None for the default."""
        return next((each.origin for each in self.layers if name in each.values), None)

    def given(self, name: str, source: Source) -> str | None:
        """Return the text of ``name`` in the first layer of ``source``, or its default text."""
        if source is Source.DEFAULT:
            return find_property(Scope.BROKER, name).default_for(self.nodes)
        layers = (each.values for each in self.layers if each.source is source)
        return next((values[name] for values in layers if name in values), None)

    def lookup_for_listener(self, listener: str) -> Callable[..., str]:
        """Return a lookup function for the settings of one listener (KIP-103).

        The function takes the name of a setting without prefixes, and a SASL mechanism for settings
        that can be set per mechanism. It returns the listener's value, or else the broker's; "" if
        unset. It raises ConfigError if the value is invalid.
        """

        def setting(name: str, mechanism: str | None = None) -> str:
            prefix = f"{LISTENER_PREFIX}{listener.lower()}."
            own = [prefix + name] if mechanism is None else [f"{prefix}{mechanism.lower()}.{name}"]
            if mechanism is not None and name not in _ONLY_PER_MECHANISM:
                own.append(prefix + name)
            each = find_property(Scope.BROKER, name)
            texts = (
                layer.values[spelled]
                for spelled in own
                for layer in self.layers
                if spelled in layer.values
            )
            text = next(texts, None)
            value = self[name] if text is None else each.parse(text)
            return each.format(value) or ""

        return setting

    def has_listener_override(self, listener: str, name: str) -> bool:
        """Return True if a setting is set for this listener specifically."""
        spelled = f"{LISTENER_PREFIX}{listener.lower()}.{name}"
        return any(spelled in layer.values for layer in self.layers)

    def first_set(self, names: Iterable[str]) -> Value:
        """Return the first value that is set among several names, in the unit of the first name."""
        for name in names:
            value = self[name]
            if value is not None:
                factor = BROKER_PROPERTIES[name].milliseconds
                # A negative number is a special value (-1: unlimited) in every unit.
                scaled = isinstance(value, int) and factor > 1 and value > 0
                return value * factor if scaled else value
        return None

    @property
    def rack(self) -> str | None:
        """Rack of this node for clients, None if unset."""
        return self.broker_rack or None

    @property
    def uses_rack_aware_selector(self) -> bool:
        """True if consumers read from a replica in their rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    def connections_max_from(self, host: str) -> int:
        """Return the maximum number of open connections from one address."""
        return self._connections_max.get(host, self.max_connections_per_ip)

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Log directories of this node: ``log.dirs``, or else ``log.dir``."""
        return self._log_dirs or self.log_dir

    @property
    def listeners(self) -> tuple[str, ...]:
        """Addresses to listen on, each ``NAME://host:port``, without controller listeners."""
        return self._without_controllers(self.all_listeners)

    @property
    def advertised_listeners(self) -> tuple[str, ...]:
        """Advertised addresses; if empty, each client gets the address to which it connected."""
        return self._without_controllers(self.all_advertised_listeners)

    @property
    def inter_broker_listener_name(self) -> str:
        """Name of the inter-broker listener in upper case; empty if unset."""
        return self._inter_broker_listener_name.upper()

    def _without_controllers(self, listeners: Iterable[str]) -> tuple[str, ...]:
        controllers = {each.upper() for each in self.controller_listener_names}
        return tuple(
            each
            for each in listeners
            if each.partition("://")[0].strip().upper() not in controllers
        )


class ResourceConfig(Settings):
    """Settings of a topic, group or subscription: its own values, or else the broker's.

    Attributes:
        errors: Errors of the stored settings that `stored` ignored.

    Raises:
        ConfigError: A name is unknown or a value is invalid.
    """

    __slots__ = ("_own", "broker", "errors", "overrides")

    scope: ClassVar[Scope]

    @classmethod
    def stored(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> Self:
        """Return the settings as stored in the cluster, without invalid settings.

        Another version may have accepted a setting that is invalid in this version.
        """
        config = cls({}, broker)
        for name, text in overrides.items():
            try:
                config._own[name] = find_property(cls.scope, name).parse(text)
            except ConfigError as error:
                config.errors.append(str(error))
            else:
                config.overrides[name] = text
        return config

    def __init__(self, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        self.overrides: dict[str, str] = dict(overrides)
        self.broker = broker
        self.errors: list[str] = []
        self._own = {
            name: find_property(self.scope, name).parse(text) for name, text in overrides.items()
        }

    def __getitem__(self, name: str) -> Value:
        return self.effective(name)

    def effective(self, name: str) -> Value:
        """Return the resource's own value, or else the broker's, or else the default.

        Raises:
            KeyError: The name is unknown.
        """
        if name in self._own:
            return self._own[name]
        each = PROPERTIES[self.scope][name]
        if each.synonyms:
            return self.broker.first_set(each.synonyms)
        return None if each.default is None else each.parse(each.default)


class TopicConfig(ResourceConfig, TopicSettings):
    """Settings of one topic: the values of the topic, or else the values of the broker."""

    __slots__ = ()

    scope = Scope.TOPIC

    @property
    def compacted(self) -> bool:
        """True if the topic is compacted, so that every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def segment_bytes(self) -> int:
        """Maximum segment size in bytes."""
        internal = self.effective("internal.segment.bytes")
        return internal if isinstance(internal, int) else self._segment_bytes


def validate_topic_config(name: str, value: str | None) -> None:
    """Check one new setting of a topic.

    Raises:
        ConfigError: The name is unknown, or the value is null or invalid.
    """
    if value is None:
        raise ConfigError(f"Null value not supported for topic config {name}")
    find_property(Scope.TOPIC, name).parse(value)


def validate_topic_configs(values: Mapping[str, str | None], broker: BrokerConfig) -> None:
    """Check all new settings of a topic, each one and their combination.

    Raises:
        ConfigError: A name is unknown, a value is null or invalid, or values contradict each other.
    """
    for name, value in values.items():
        validate_topic_config(name, value)
    topic = TopicConfig({name: value or "" for name, value in values.items()}, broker)
    min_lag, max_lag = topic.min_compaction_lag_ms, topic.max_compaction_lag_ms
    if min_lag > max_lag:
        raise ConfigError(
            f"min.compaction.lag.ms ({min_lag}) is greater than max.compaction.lag.ms ({max_lag})"
        )


def _limits_by_host(text: str) -> dict[str, int]:
    """Parse HOST:COUNT,...; an IPv6 address may be in brackets."""
    parts = (each.strip().rpartition(":") for each in text.split(",") if each.strip())
    return {host.strip("[]"): int(count) for host, _, count in parts}


def _is_static(layer: ConfigLayer) -> bool:
    return layer.source is Source.STATIC_BROKER


def _with_both_ids(layer: ConfigLayer) -> ConfigLayer:
    """Set both ``node.id`` and ``broker.id`` if one is given: they are synonyms, as in Kafka."""
    given = [name for name in ("node.id", "broker.id") if name in layer.values]
    if len(given) != 1:
        return layer
    number = layer.values[given[0]]
    if not number.strip().isdecimal():
        return layer  # the parser reports it later, under the configured name
    return layer._replace(values={**layer.values, "node.id": number, "broker.id": number})


# Settings that need both a listener prefix and a mechanism prefix, as in Kafka.
_ONLY_PER_MECHANISM = ("sasl.jaas.config",)
# Prefixes of settings that are dynamic only with a listener prefix, as in Kafka.
_ONLY_PER_LISTENER = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")
# Prefixes of settings that are dynamic only for a single broker, as in Kafka.
_ONLY_PER_BROKER = ("cordoned.log.dirs", "listener", "principal.builder.", "sasl.", "ssl.")


def _check_dynamic(names: Iterable[str], source: Source) -> None:
    """Raise ConfigError for settings that cannot be changed on a running node, by Kafka's rules.

    Settings that only Kafka has are accepted as Kafka accepts them.
    """
    known = {name: BROKER_PROPERTIES.get(name) or find_kafka_only(name) for name in sorted(names)}
    unknown = [
        unknown_name_error(name, Scope.BROKER) for name, each in known.items() if each is None
    ]
    if unknown:
        raise ConfigError("\n".join(unknown))
    _reject_if_any(
        "Cannot update these configs dynamically",
        (name for name, each in known.items() if each and not each.dynamic),
    )
    _reject_if_any(
        "These security configs can be dynamically updated only per-listener using the listener "
        "prefix",
        (name for name in known if name.startswith(_ONLY_PER_LISTENER)),
    )
    if source is Source.DYNAMIC_DEFAULT_BROKER:
        _reject_if_any(
            "Cannot update these configs at default cluster level, broker id must be specified",
            (name for name in known if name.startswith(_ONLY_PER_BROKER)),
        )


def _reject_if_any(reason: str, names: Iterable[str]) -> None:
    rejected = ", ".join(names)
    if rejected:
        raise ConfigError(f"{reason}: [{rejected}]")


@cache
def _defaults(nodes: int) -> Mapping[str, Value]:
    """Return all defaults, cached because tests create many brokers."""
    texts = ((each, each.default_for(nodes)) for each in BROKER_PROPERTIES.values())
    return MappingProxyType(
        {each.name: None if text is None else each.parse(text) for each, text in texts}
    )


def _parsed(layers: tuple[ConfigLayer, ...]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    errors = []
    for layer in reversed(layers):
        for name, text in layer.values.items():
            if name not in BROKER_PROPERTIES:
                continue
            try:
                values[name] = BROKER_PROPERTIES[name].parse(text)
            except ConfigError as error:
                errors.append(f"{error} ({layer.origin})")
    if errors:
        raise ConfigError("\n".join(errors))
    return values


def _notices(config: BrokerConfig) -> tuple[ConfigNotice, ...]:
    """Return a warning for each problematic name, and one notice for all names without effect."""
    ignored, warnings = [], []
    for name in sorted({name for layer in config.layers for name in layer.values}):
        match effect_of(name):
            case SettingEffect.NONE:
                ignored.append(name)
            case SettingEffect.LATER if not config.is_default(name):
                warnings.append(f"{name} has no effect yet ({config.origin(name)})")
            case None:
                warnings.append(f"{unknown_name_error(name, Scope.BROKER)} ({config.origin(name)})")
    if config.strict and warnings:
        raise ConfigError("\n".join(warnings))
    notices = [ConfigNotice("warning", text) for text in warnings]
    kafka_names = [
        name for each in config.layers if each.origin == KAFKA_ORIGIN for name in each.values
    ]
    if kafka_names:
        notices.append(
            ConfigNotice("info", f"Settings from KAFKA_*: {', '.join(sorted(kafka_names))}")
        )
    if ignored:
        notices.append(ConfigNotice("info", f"Settings without effect: {', '.join(ignored)}"))
    return tuple(notices)


def _check_combinations(config: BrokerConfig) -> None:
    """Raise ConfigError if settings contradict each other."""
    errors = [
        f"{name}: invalid value 0; it must be -1 (unlimited) or at least 1"
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        if config[name] == 0
    ]
    if config["node.id"] != config["broker.id"]:
        errors.append("node.id and broker.id are synonyms but differ; set only one of them")
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        errors.append("group.min.session.timeout.ms is greater than group.max.session.timeout.ms")
    if 0 < config.queued_max_request_bytes < config.request_max_bytes:
        errors.append("queued.max.request.bytes is less than socket.request.max.bytes")
    if not config.listeners:
        errors.append(
            "listeners: no listener for clients; add one that is not a controller listener"
        )
    if errors:
        raise ConfigError("\n".join(errors))
