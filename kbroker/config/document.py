"""Generator of ``docs/reference/configuration.md`` from the table of settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from .broker_table import BrokerSettings
from .group_table import ClientMetricsSettings, GroupSettings
from .kafka_only import KAFKA_ONLY
from .property import Property, SettingEffect, Settings, Value, properties_of
from .tables import BROKER_PROPERTIES, TOPIC_PROPERTIES
from .topic_table import TopicSettings

_INTRODUCTION = """\
# Configuration

<!-- Generated from the property table: python -m kbroker.config > docs/reference/configuration.md -->

Settings have Kafka's names. kbroker reads them from these places, highest priority first:

1. dynamic settings, which clients change at runtime (see below), if the setting is *live*;
2. command-line options: `kbroker serve -o log.retention.hours=24` (repeatable), and flags that are
   shorthands for a setting, such as `--port`;
3. environment variables: `KBROKER_CFG_LOG_RETENTION_HOURS=24` (`_` means a dot, `__` an underscore,
   `___` a dash);
4. with `--env-config`, the environment variables of Kafka's container images (see below);
5. the file of `--config`: Java properties (`server.properties`), or TOML if its name ends in
   `.toml`. TOML tables are joined by dots. Quote a name that is a prefix of another name:
   `"max.connections" = 5`;
6. the default.

`kbroker config explain log.retention.hours` describes a setting, and `kbroker config explain
tombstone` lists the settings with this word in their name or description.
`kbroker config show --diff`, with the flags of `kbroker serve`, shows the settings that a server
would use and their origin.

An invalid value prevents the start, with exit code 3. An unknown name causes a warning that
suggests the most similar name. A setting whose feature is not implemented yet also causes a
warning. With `--strict` both are errors. Settings without effect in kbroker are listed in one INFO
line. DescribeConfigs lists unknown names as sensitive and without a value, like Kafka.

If a setting exists in several units, the most precise one takes precedence: `log.retention.ms`,
then `log.retention.minutes`, then `log.retention.hours`; `log.roll.ms`, then `log.roll.hours`.

### KAFKA_* variables

With `--env-config`, kbroker reads these variables:

* `KAFKA_NUM_PARTITIONS` and Bitnami's `KAFKA_CFG_NUM_PARTITIONS` set `num.partitions`, by the name
  rule above. One INFO line lists the settings found.
* `CLUSTER_ID` is the cluster ID of a new cluster.
* `KAFKA_LOG4J_ROOT_LOGLEVEL` has the effect of `--log-level`.
* `KAFKA_CREATE_TOPICS=t1:3:1,t2:1:1:compact` has the effect of `--topic` (name, partitions,
  replication factor, cleanup policy).

Without the flag no `KAFKA_*` variable is read, because on many machines these variables configure
clients.

If `listeners` is unset, the broker listens on all interfaces at the ports of
`KAFKA_ADVERTISED_LISTENERS`, or at wurstmeister's `KAFKA_ADVERTISED_PORT` (with
`KAFKA_ADVERTISED_HOST_NAME`). Users can be defined in two ways:

* the `KafkaServer` section of the JAAS file in `KAFKA_OPTS=-Djava.security.auth.login.config=FILE`;
* Bitnami's variables: `KAFKA_CLIENT_USERS` and `KAFKA_CLIENT_PASSWORDS`, `KAFKA_INTER_BROKER_USER`
  and `KAFKA_INTER_BROKER_PASSWORD`.

Other variables for the JVM, such as `KAFKA_HEAP_OPTS`, are ignored.

### Dynamic settings

As in Kafka, clients can change *live* settings at runtime, for one broker or for all brokers
(`kafka-configs.sh --alter` with `--entity-name 1` or `--entity-default`). A change takes effect at
once, also for topics that inherit the setting, and survives a restart. Kafka's rules apply: the
broker rejects changes of settings that need a restart, and of TLS files without a listener prefix.

Topics, groups and metrics subscriptions have their own settings. Log levels can be changed like
those of Kafka's broker loggers, for the logger `root` and all loggers below `kbroker`; they are
reset when the process ends. `kbroker config log-level` does the same.

In the tables, the column *changes* says how a setting can be changed. *Live* settings are dynamic,
as DescribeConfigs reports them; all others need a restart.
"""

_DESCRIBE_CONFIGS = """\
## DescribeConfigs

Responses have the form of Kafka 4.4: value, source, synonyms, type, documentation, and the
read-only and sensitive flags. For a topic they are equal to Kafka's, with these differences:

* `min.insync.replicas` of a topic without its own value has the source "default". A new Kafka 4.4
  cluster stores the value 1 for all brokers, so Kafka reports a dynamic default of the cluster.
* Java-only number literals (`0x1p-1`, `0.5f`, `NaN`) are rejected.
* Entries are sorted by name.
* The documentation strings are kbroker's own.

For a broker, responses contain all settings of Kafka and those of kbroker below.

Like in Kafka, a value from a less precise name counts as a default without synonyms. While only
`log.retention.hours` is set, `retention.ms` has the correct value and the source "default".

## AlterConfigs and IncrementalAlterConfigs

Error codes and rules are those of Kafka 4.4, with these differences:

* kbroker rejects a broker setting that neither Kafka nor kbroker has, and suggests the most similar
  name. Kafka stores it for plug-ins.
* Thread counts may change by any factor. Kafka permits at most doubling or halving.
* `min.insync.replicas` can be set for one broker and deleted for all. Kafka rejects both while
  eligible leader replicas (KIP-966) are enabled.
* A metrics push interval out of range is rejected with INVALID_CONFIG. Kafka returns
  INVALID_REQUEST.
* Items can be appended to the lists of a metrics subscription.
* An unknown operation is rejected with INVALID_REQUEST. Kafka returns UNKNOWN_SERVER_ERROR.
"""

_TOPIC_SETTINGS = """\
## Topic settings

Set them when a topic is created, or change them later; a change takes effect at once. A setting
that is not set for the topic has the value of the broker setting in the same row.
"""


_TITLES = ("setting", "type", "default", "allowed", "broker setting", "meaning")

_KAFKA_ONLY = """\
### Known by name only

kbroker accepts Kafka's other broker settings wherever Kafka accepts them. They have no effect.
"""


def document() -> str:
    """Return the whole page as Markdown."""
    parts = [
        _INTRODUCTION,
        "## Differences from Kafka 4.4\n\nDefaults:\n",
        _table(("setting", "kbroker", "Kafka"), map(_difference, _with_different_default())),
        "\nSettings that Kafka does not have: " + _name_list(_kbroker_only()) + ".\n",
        f"Live in Kafka, but a change needs a restart in kbroker: {_name_list(_static_in_kbroker())}.\n",
        _no_effect(),
        _DESCRIBE_CONFIGS,
        _TOPIC_SETTINGS,
        _table(_TITLES, map(_topic_row, properties_of(TopicSettings))),
        "\n## Group settings\n",
        _table(_TITLES, map(_topic_row, properties_of(GroupSettings))),
        "\n## Metrics subscription settings\n",
        _table(_TITLES, map(_topic_row, properties_of(ClientMetricsSettings))),
        "\n## Broker settings\n",
        *_sections(),
        _KAFKA_ONLY,
        _kafka_only(SettingEffect.LATER),
        _kafka_only(SettingEffect.NONE),
    ]
    return "\n".join(parts)


def _sections() -> Iterator[str]:
    for title, classes in groupby(BrokerSettings.__bases__, _title):
        properties = chain.from_iterable(map(properties_of, classes))
        yield f"### {title}\n"
        yield _table(
            ("setting", "type", "default", "allowed", "changes", "meaning"),
            map(_broker_row, properties),
        )
        yield ""


def _title(owner: type[Settings]) -> str:
    return owner.title


def _no_effect() -> str:
    later = [each for each in _all_properties() if each.effect is SettingEffect.LATER]
    ignored = [each for each in _all_properties() if each.effect is SettingEffect.NONE]
    return (
        f"\nAccepted, stored and shown, but without effect because the feature is not implemented "
        "yet:\n"
        f"{_name_list(later)}.\n\n"
        f"Accepted, stored and shown, but without effect because kbroker works differently:\n"
        f"{_name_list(ignored)}.\n"
    )


def _all_properties() -> list[Property[Value]]:
    names = {each.name: each for each in (*BROKER_PROPERTIES.values(), *TOPIC_PROPERTIES.values())}
    return [names[name] for name in sorted(names)]


def _with_different_default() -> list[Property[Value]]:
    return [each for each in _all_properties() if each.kafka_default is not None]


def _static_in_kbroker() -> list[Property[Value]]:
    return [each for each in _all_properties() if each.kafka_dynamic]


def _kafka_only(effect: SettingEffect) -> str:
    names = ", ".join(_code(name) for name, each in KAFKA_ONLY.items() if each.effect is effect)
    reason = (
        "Feature not implemented yet"
        if effect is SettingEffect.LATER
        else "Without effect because kbroker works differently"
    )
    return f"{reason}: {names}.\n"


def _kbroker_only() -> list[Property[Value]]:
    return [each for each in _all_properties() if each.kbroker_only]


def _difference(each: Property[Value]) -> tuple[str, ...]:
    kbroker_default = _value(each.default)
    if each.per_nodes:
        kbroker_default += f" with one node, {each.per_nodes(3)} with three"
    kafka = each.kafka_default or ""
    return _code(each.name), kbroker_default, kafka if kafka.startswith("none:") else _value(kafka)


def _topic_row(each: Property[Value]) -> tuple[str, ...]:
    synonyms = "<br>".join(map(_code, each.synonyms))
    return (*_common(each), synonyms, _meaning(each))


def _broker_row(each: Property[Value]) -> tuple[str, ...]:
    return (*_common(each), "live" if each.dynamic else "restart", _meaning(each))


def _common(each: Property[Value]) -> tuple[str, ...]:
    unit = f" ({each.unit})" if each.unit else ""
    return _code(each.name), each.type.name + unit, _value(each.default), each.allowed


def _meaning(each: Property[Value]) -> str:
    marks = {SettingEffect.LATER: " *No effect yet.*", SettingEffect.NONE: " *No effect.*"}
    return each.doc + marks.get(each.effect, "")


def _value(text: str | None) -> str:
    if text is None:
        return "unset"
    return _code(text) if text else "empty"


def _code(text: str) -> str:
    return f"`{text}`"


def _name_list(properties: Iterable[Property[Value]]) -> str:
    return ", ".join(_code(each.name) for each in properties)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
