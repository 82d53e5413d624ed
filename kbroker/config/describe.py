"""Settings in the form of Kafka 4.4's DescribeConfigs responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .entry import ConfigEntry, Synonym
from .group_values import ClientMetricsConfig, GroupConfig
from .kafka_only import KAFKA_ONLY, LISTENER_PREFIX, KafkaOnlySetting, find_kafka_only
from .property import Property, Source, Value
from .tables import BROKER_PROPERTIES, GROUP_PROPERTIES, PROPERTIES, TOPIC_PROPERTIES
from .values import BrokerConfig, ResourceConfig, TopicConfig

_BROKER_SOURCES = (
    Source.DYNAMIC_BROKER,
    Source.DYNAMIC_DEFAULT_BROKER,
    Source.STATIC_BROKER,
    Source.DEFAULT,
)

UNKNOWN_TYPE = 0


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Return all settings of a topic with its ``overrides``, sorted by name."""
    defaults = broker.topic_defaults
    if defaults is None:
        entries = _own_entries(TopicConfig({}, broker), Source.TOPIC)
        defaults = broker.topic_defaults = tuple(entries)
    if not overrides:
        return [*defaults]
    topic = TopicConfig.stored(overrides, broker)
    return [
        _own_entry(TOPIC_PROPERTIES[each.name], topic, Source.TOPIC)
        if each.name in topic.overrides
        else each
        for each in defaults
    ]


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Return all settings of a group with its ``overrides``, sorted by name."""
    entries = _own_entries(GroupConfig.stored(overrides, broker), Source.GROUP)
    return [_with_group_default(each) for each in entries]


def _with_group_default(entry: ConfigEntry) -> ConfigEntry:
    """Add the default as a synonym to a setting without a broker setting, as Kafka does."""
    setting = GROUP_PROPERTIES[entry.name]
    if setting.synonyms:
        return entry
    default = Synonym(entry.name, setting.default, Source.DEFAULT)
    return entry._replace(synonyms=[*entry.synonyms, default])


def describe_client_metrics(
    overrides: Mapping[str, str], broker: BrokerConfig
) -> list[ConfigEntry]:
    """Return all settings of a metrics subscription, sorted by name."""
    return _own_entries(ClientMetricsConfig.stored(overrides, broker), Source.CLIENT_METRICS)


def describe_log_level(logger: str, level: str) -> ConfigEntry:
    """Return the level of one logger as an entry."""
    return ConfigEntry(
        name=logger,
        value=level,
        read_only=False,
        is_default=False,
        source=Source.LOGGER,
        sensitive=False,
        synonyms=[],
        type=UNKNOWN_TYPE,
        doc="",
    )


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Return all settings of a node sorted by name, followed by settings of single listeners."""
    known = [_broker_entry(each, broker) for each in BROKER_PROPERTIES.values()]
    known += _kafka_only_entries(broker, _BROKER_SOURCES)
    known.sort(key=lambda entry: entry.name)
    known += _listener_entries(broker, _BROKER_SOURCES)
    return known + _unknown_entries(broker, _BROKER_SOURCES)


def describe_every_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Return the cluster-wide dynamic broker settings, sorted by name."""
    source = Source.DYNAMIC_DEFAULT_BROKER
    known = [
        _entry(
            each,
            each.parse(text),
            [_hide_sensitive(Synonym(each.name, text, source))],
            read_only=False,
        )
        for each in BROKER_PROPERTIES.values()
        if (text := broker.given(each.name, source)) is not None
    ]
    known += [each for each in _kafka_only_entries(broker, (source,)) if each.synonyms]
    known.sort(key=lambda entry: entry.name)
    known += _listener_entries(broker, (source,))
    return known + _unknown_entries(broker, (source,))


def _own_entries(config: ResourceConfig, source: Source) -> list[ConfigEntry]:
    properties = PROPERTIES[config.scope].values()
    return [_own_entry(each, config, source) for each in properties if not each.internal]


def _own_entry(each: Property[Value], config: ResourceConfig, source: Source) -> ConfigEntry:
    value = config.effective(each.name)
    synonyms = _synonyms(each.synonyms, config.broker) if each.synonyms else []
    if each.name in config.overrides:
        synonyms.insert(0, Synonym(each.name, each.format(value), source))
    return _entry(each, value, synonyms, read_only=False)


def _kafka_only_entries(broker: BrokerConfig, sources: Sequence[Source]) -> list[ConfigEntry]:
    """Return the settings of Kafka 4.4 that kbroker accepts by name only, sorted by name."""
    known = {name: each for name, each in KAFKA_ONLY.items() if each.type is not None}
    return [_kafka_only_entry(name, each, broker, sources) for name, each in known.items()]


def _kafka_only_entry(
    name: str, each: KafkaOnlySetting, broker: BrokerConfig, sources: Sequence[Source]
) -> ConfigEntry:
    """Return one entry with the values of `sources` as synonyms."""
    synonyms = [
        Synonym(name, None if each.sensitive else text, source)
        for source in sources
        if (text := _kafka_only_text(name, each, broker, source)) is not None
    ]
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return ConfigEntry(
        name=name,
        value=synonyms[0].value if synonyms else None,
        read_only=not each.dynamic,
        is_default=source is Source.DEFAULT,
        source=source,
        sensitive=each.sensitive,
        synonyms=synonyms,
        type=UNKNOWN_TYPE if each.type is None else int(each.type),
        doc="A Kafka setting that kbroker accepts by name only.",
    )


def _kafka_only_text(
    name: str, each: KafkaOnlySetting, broker: BrokerConfig, source: Source
) -> str | None:
    return each.default if source is Source.DEFAULT else broker.given(name, source)


def _listener_entries(broker: BrokerConfig, sources: tuple[Source, ...]) -> list[ConfigEntry]:
    """Return the configured settings of single listeners (KIP-103), sorted by name."""
    given = {
        name
        for layer in broker.layers
        if layer.source in sources
        for name in layer.values
        if name.startswith(LISTENER_PREFIX)
    }
    return [_listener_entry(name, broker, sources) for name in sorted(given)]


def _listener_entry(name: str, broker: BrokerConfig, sources: tuple[Source, ...]) -> ConfigEntry:
    """Return one setting of a listener, with the type of the broker setting that it overrides.

    As in Kafka, the entry is marked read-only although the setting is dynamic. A setting that is in no
    table is marked sensitive.
    """
    base = _base_name(name)
    each = BROKER_PROPERTIES.get(base)
    is_sensitive = each is None or each.sensitive
    synonyms = [
        Synonym(spelled, None if is_sensitive else text, source)
        for source in sources
        for spelled in ((base,) if source is Source.DEFAULT else (name, base))
        if (source is not Source.DEFAULT or each is not None)
        and (text := broker.given(spelled, source)) is not None
    ]
    return ConfigEntry(
        name=name,
        value=synonyms[0].value,
        read_only=True,
        is_default=False,
        source=synonyms[0].source,
        sensitive=is_sensitive,
        synonyms=synonyms,
        type=UNKNOWN_TYPE if each is None else int(each.type),
        doc="",
    )


def _base_name(name: str) -> str:
    """Return the broker setting that a setting of one listener, or mechanism, overrides."""
    rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    mechanism_setting = rest.partition(".")[2]
    return (
        mechanism_setting
        if rest not in BROKER_PROPERTIES and mechanism_setting in BROKER_PROPERTIES
        else rest
    )


def _unknown_entries(broker: BrokerConfig, sources: Iterable[Source]) -> list[ConfigEntry]:
    """Return the settings that Kafka 4.4 and kbroker lack, sorted by name.

    As in Kafka their values are hidden, because they may be secrets. Static settings of earlier
    Kafka versions are omitted.
    """
    given: dict[str, dict[Source, None]] = {}
    for layer in broker.layers:
        for name in layer.values:
            other = KAFKA_ONLY.get(name)
            is_listed = name in BROKER_PROPERTIES or (other is not None and other.type is not None)
            is_known = is_listed or name.startswith(LISTENER_PREFIX)
            if layer.source in sources and not is_known:
                given.setdefault(name, {})[layer.source] = None
    return [
        ConfigEntry(
            name=name,
            value=None,
            read_only=True,
            is_default=False,
            source=next(iter(found)),
            sensitive=True,
            synonyms=[Synonym(name, None, source) for source in found],
            type=UNKNOWN_TYPE,
            doc="",
        )
        for name, found in sorted(given.items())
        if find_kafka_only(name) is None or found.keys() != {Source.STATIC_BROKER}
    ]


def _broker_entry(each: Property[Value], broker: BrokerConfig) -> ConfigEntry:
    names = each.synonyms or (each.name,)
    synonyms = _synonyms(names[names.index(each.name) :], broker)
    return _entry(each, broker[each.name], synonyms, read_only=not each.dynamic)


def _synonyms(names: tuple[str, ...], broker: BrokerConfig) -> list[Synonym]:
    """Return all configured values of a setting's names, by source, then by precision.

    As in Kafka, the list begins with the first of ``names``, and is empty if that name is not set: while
    only ``log.retention.hours`` is set, ``retention.ms`` counts as a default without synonyms.
    """
    found = [
        Synonym(name, text, source)
        for source in _BROKER_SOURCES
        for name in names
        if (text := broker.given(name, source)) is not None
    ]
    start = next((i for i, each in enumerate(found) if each.name == names[0]), len(found))
    return [_hide_sensitive(each) for each in found[start:]]


def _hide_sensitive(synonym: Synonym) -> Synonym:
    sensitive = BROKER_PROPERTIES[synonym.name].sensitive
    return synonym._replace(value=None) if sensitive else synonym


def _entry(
    each: Property[Value], value: Value, synonyms: list[Synonym], *, read_only: bool
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return ConfigEntry(
        name=each.name,
        value=None if each.sensitive else each.format(value),
        read_only=read_only,
        is_default=source is Source.DEFAULT,
        source=source,
        sensitive=each.sensitive,
        synonyms=synonyms,
        type=int(each.type),
        doc=each.doc,
    )
