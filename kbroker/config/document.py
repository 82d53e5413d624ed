"""The settings as a page of documentation: ``docs/reference/configuration.md`` is made from the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from .broker_table import BrokerSettings
from .group_table import ClientMetricsSettings, GroupSettings
from .kafka_only import KAFKA_ONLY
from .property import Effect, Property, Settings, Value, properties_of
from .tables import BROKER_PROPERTIES, TOPIC_PROPERTIES
from .topic_table import TopicSettings

_INTRODUCTION = """\
# Configuration

<!-- Made from the property table: python -m kbroker.config > docs/reference/configuration.md -->

Settings carry Kafka's names. They are read from these places, the strongest first:

1. what clients gave the broker while it runs (below), if the setting is a live one;
2. flags such as `--port`, which stand for a setting, and options:
   `kbroker serve -o log.retention.hours=24`, repeatable;
3. the environment: `KBROKER_CFG_LOG_RETENTION_HOURS=24` (`_` for a dot, `__` for an underscore,
   `___` for a dash);
4. with `--env-config` the environment as Kafka's container images read it (below);
5. the file of `--config`: Java properties (`server.properties`), or TOML when its name ends in
   `.toml`. TOML tables are joined by dots; a name that begins another one is quoted there:
   `"max.connections" = 5`;
6. the default.

`kbroker config explain log.retention.hours` says what a setting means, and
`kbroker config show --diff`, with the flags of `kbroker serve`, what a server would get and from
where.

A bad value stops the start with exit code 3. An unknown name gives a warning with the nearest
name there is; so does a setting whose behaviour does not exist yet. With `--strict` both are
errors. Names that mean nothing to kbroker are listed in one INFO line. DescribeConfigs lists
unknown names as sensitive and without a value, like Kafka.

Of settings that exist in several units the most precise one holds: `log.retention.ms`, then
`log.retention.minutes`, then `log.retention.hours`; `log.roll.ms`, then `log.roll.hours`.

### KAFKA_* variables

With `--env-config`: `KAFKA_NUM_PARTITIONS` and Bitnami's `KAFKA_CFG_NUM_PARTITIONS` are
`num.partitions`, by the name rule above; the names taken are told in one INFO line. Without the
flag nothing is read, because on many machines `KAFKA_*` describes clients. `CLUSTER_ID` is the id
of a new cluster, `KAFKA_LOG4J_ROOT_LOGLEVEL` stands for `--log-level`,
`KAFKA_CREATE_TOPICS=t1:3:1,t2:1:1:compact` for `--topic` (name, partitions, replicas, cleanup
policy).

If `listeners` is unset, the broker listens on every interface at the ports of
`KAFKA_ADVERTISED_LISTENERS`, or at wurstmeister's `KAFKA_ADVERTISED_PORT` (with
`KAFKA_ADVERTISED_HOST_NAME`). Users can be defined in two ways:

* the `KafkaServer` section of the JAAS file of `KAFKA_OPTS=-Djava.security.auth.login.config=FILE`;
* Bitnami's variables: `KAFKA_CLIENT_USERS` and `KAFKA_CLIENT_PASSWORDS`, `KAFKA_INTER_BROKER_USER`
  and `KAFKA_INTER_BROKER_PASSWORD`.

Other variables of the Java process, such as `KAFKA_HEAP_OPTS`, are ignored.

### Settings of a broker that runs

Live settings can be changed by clients, as in Kafka: for one node, or for all (with
`kafka-configs.sh --alter`: `--entity-name 1` or `--entity-default`). They act at once, also for the
topics that inherit them, and survive a restart. Kafka's rules hold: what needs a restart is refused,
so are TLS files without a listener's prefix. Topics, groups and metrics subscriptions have settings
of their own; those of groups and metrics subscriptions are checked, kept and shown, and have no
effect yet. Log levels are changed as Kafka's broker loggers are: the logger `root` and all below
`kbroker`, until the process ends.

In the tables, *changes* says when a new value can be given: *live* settings are marked dynamic in
DescribeConfigs answers, as in Kafka, the others need a restart.
"""

_DESCRIBE_CONFIGS = """\
## DescribeConfigs

Answers have Kafka 4.3's form: value, source, synonyms, type, documentation, read-only and
sensitive flags. For a topic they equal Kafka's, with these differences:

* `min.insync.replicas` of a topic that does not set it is a default here. A new Kafka 4.3 cluster
  stores the value 1 for all brokers, so that it is shown as a dynamic default of the cluster.
* Numbers written as Java literals only (`0x1p-1`, `0.5f`, `NaN`) are refused.
* Entries stand in the order of names.
* The documentation texts are kbroker's own.

For a broker the settings below are listed, not all of Kafka's.

Like Kafka, a value that comes from a less precise spelling counts as a default without synonyms:
while only `log.retention.hours` is set, `retention.ms` shows the right value and the source
"default".

## Changing settings

Error codes and rules are Kafka 4.3's, with these differences:

* A broker setting that neither Kafka nor kbroker knows is refused with the nearest name; Kafka
  keeps it for plug-ins.
* Numbers of threads may change by any factor; Kafka at most doubles or halves them at once.
* `min.insync.replicas` can be given to one node and taken from all; Kafka refuses both while
  eligible leader replicas (KIP-966) are in use.
* A report interval of metrics that is out of range is INVALID_CONFIG, in Kafka INVALID_REQUEST;
  items can be appended to the lists of a metrics subscription.
* An unknown operation is INVALID_REQUEST, in Kafka UNKNOWN_SERVER_ERROR.
"""

_TOPIC_SETTINGS = """\
## Topic settings

Given when a topic is created, or changed later; a change acts at once. One that is not given has the
value of the broker setting next to it.
"""


_TITLES = ("setting", "type", "default", "allowed", "broker setting", "meaning")

_KAFKA_ONLY = """\
### Known by name only

Kafka's other broker settings are accepted wherever Kafka accepts them, and change nothing.
"""


def document() -> str:
    """The whole page, as Markdown."""
    parts = [
        _INTRODUCTION,
        "## What differs from Kafka 4.3\n\nDefaults:\n",
        _table(("setting", "kbroker", "Kafka"), map(_difference, _with_other_default())),
        "\nSettings that Kafka does not have: " + _listed(_own()) + ".\n",
        f"Live in Kafka, with a restart here: {_listed(_fixed_here())}.\n",
        _no_effect(),
        _DESCRIBE_CONFIGS,
        _TOPIC_SETTINGS,
        _table(_TITLES, map(_topic_row, properties_of(TopicSettings))),
        "\n## Group settings\n",
        _table(_TITLES, map(_topic_row, properties_of(GroupSettings))),
        "\n## Settings of metrics subscriptions\n",
        _table(_TITLES, map(_topic_row, properties_of(ClientMetricsSettings))),
        "\n## Broker settings\n",
        *_sections(),
        _KAFKA_ONLY,
        _kafka_only(Effect.LATER),
        _kafka_only(Effect.NONE),
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
    later = [each for each in _all() if each.effect is Effect.LATER]
    ignored = [each for each in _all() if each.effect is Effect.NONE]
    return (
        f"\nAccepted, kept and shown, without effect until what they ask for exists:\n"
        f"{_listed(later)}.\n\n"
        f"Accepted, kept and shown, without effect because kbroker works differently:\n"
        f"{_listed(ignored)}.\n"
    )


def _all() -> list[Property[Value]]:
    names = {each.name: each for each in (*BROKER_PROPERTIES.values(), *TOPIC_PROPERTIES.values())}
    return [names[name] for name in sorted(names)]


def _with_other_default() -> list[Property[Value]]:
    return [each for each in _all() if each.kafka_default is not None]


def _fixed_here() -> list[Property[Value]]:
    return [each for each in _all() if each.kafka_dynamic]


def _kafka_only(effect: Effect) -> str:
    names = ", ".join(_code(name) for name, each in KAFKA_ONLY.items() if each.effect is effect)
    why = "What they ask for does not exist yet" if effect is Effect.LATER else "kbroker differs"
    return f"{why}: {names}.\n"


def _own() -> list[Property[Value]]:
    return [each for each in _all() if each.own]


def _difference(each: Property[Value]) -> tuple[str, ...]:
    ours = _value(each.default)
    if each.per_nodes:
        ours += f" on one node, {each.per_nodes(3)} on three"
    kafka = each.kafka_default or ""
    return _code(each.name), ours, kafka if kafka.startswith("none:") else _value(kafka)


def _topic_row(each: Property[Value]) -> tuple[str, ...]:
    synonyms = "<br>".join(map(_code, each.synonyms))
    return (*_common(each), synonyms, _meaning(each))


def _broker_row(each: Property[Value]) -> tuple[str, ...]:
    return (*_common(each), "live" if each.dynamic else "restart", _meaning(each))


def _common(each: Property[Value]) -> tuple[str, ...]:
    unit = f" ({each.unit})" if each.unit else ""
    return _code(each.name), each.type.name + unit, _value(each.default), each.allowed


def _meaning(each: Property[Value]) -> str:
    marks = {Effect.LATER: " *No effect yet.*", Effect.NONE: " *No effect.*"}
    return each.doc + marks.get(each.effect, "")


def _value(text: str | None) -> str:
    if text is None:
        return "unset"
    return _code(text) if text else "empty"


def _code(text: str) -> str:
    return f"`{text}`"


def _listed(properties: Iterable[Property[Value]]) -> str:
    return ", ".join(_code(each.name) for each in properties)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
