"""The settings as a page of documentation: ``docs/configuration.md`` is made from the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .broker_table import SECTIONS
from .property import Effect, Property
from .tables import BROKER_PROPERTIES
from .topic_table import TOPIC_TABLE

_INTRODUCTION = """\
# Configuration

<!-- Made from the property table: python -m kbroker.config > docs/configuration.md -->

Settings carry Kafka's names. They are read from these places, the strongest first:

1. options: `kbroker serve -o log.retention.hours=24`, repeatable; a flag such as `--port` stands
   for its setting;
2. the environment: `KBROKER_CFG_LOG_RETENTION_HOURS=24` (`_` for a dot, `__` for an underscore,
   `___` for a dash);
3. the file of `--config`: Java properties (`server.properties`), or TOML when its name ends in
   `.toml`. TOML tables are joined by dots; a name that begins another one is quoted there:
   `"max.connections" = 5`;
4. the default.

A bad value stops the start with exit code 3. An unknown name gives a warning with the nearest
name there is; so does a setting whose behaviour does not exist yet. With `--strict` both are
errors. Names that mean nothing to kbroker are listed in one INFO line.

Of settings that exist in several units the most precise one holds: `log.retention.ms`, then
`log.retention.minutes`, then `log.retention.hours`; `log.roll.ms`, then `log.roll.hours`.

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
"""

_TOPIC_SETTINGS = """\
## Topic settings

Given when a topic is created. One that is not given has the value of the broker setting next to
it.
"""


def document() -> str:
    """The whole page, as Markdown."""
    parts = [
        _INTRODUCTION,
        "## What differs from Kafka 4.3\n\nDefaults:\n",
        _table(("setting", "kbroker", "Kafka"), map(_difference, _with_other_default())),
        "\nSettings that Kafka does not have: " + _listed(_own()) + ".\n",
        _no_effect(),
        _DESCRIBE_CONFIGS,
        _TOPIC_SETTINGS,
        _table(
            ("setting", "type", "default", "allowed", "broker setting", "meaning"),
            map(_topic_row, TOPIC_TABLE),
        ),
        "\n## Broker settings\n",
        *_sections(),
    ]
    return "\n".join(parts)


def _sections() -> Iterator[str]:
    for title, properties in SECTIONS:
        yield f"### {title}\n"
        yield _table(
            ("setting", "type", "default", "allowed", "changes", "meaning"),
            map(_broker_row, properties),
        )
        yield ""


def _no_effect() -> str:
    later = [each for each in _all() if each.effect is Effect.LATER]
    ignored = [each for each in _all() if each.effect is Effect.NONE]
    return (
        f"\nAccepted, kept and shown, without effect until what they ask for exists:\n"
        f"{_listed(later)}.\n\n"
        f"Accepted, kept and shown, without effect because kbroker works differently:\n"
        f"{_listed(ignored)}.\n"
    )


def _all() -> list[Property]:
    names = {each.name: each for each in (*BROKER_PROPERTIES.values(), *TOPIC_TABLE)}
    return [names[name] for name in sorted(names)]


def _with_other_default() -> list[Property]:
    return [each for each in _all() if each.kafka_default is not None]


def _own() -> list[Property]:
    return [each for each in _all() if each.own]


def _difference(each: Property) -> tuple[str, ...]:
    ours = _value(each.default)
    if each.per_nodes:
        ours += f" on one node, {each.per_nodes(3)} on three"
    kafka = each.kafka_default or ""
    return _code(each.name), ours, kafka if kafka.startswith("none:") else _value(kafka)


def _topic_row(each: Property) -> tuple[str, ...]:
    synonyms = "<br>".join(map(_code, each.synonyms))
    return (*_common(each), synonyms, _meaning(each))


def _broker_row(each: Property) -> tuple[str, ...]:
    return (*_common(each), "live" if each.dynamic else "restart", _meaning(each))


def _common(each: Property) -> tuple[str, ...]:
    unit = f" ({each.unit})" if each.unit else ""
    return _code(each.name), each.type.name + unit, _value(each.default), each.allowed


def _meaning(each: Property) -> str:
    marks = {Effect.LATER: " *No effect yet.*", Effect.NONE: " *No effect.*"}
    return each.doc + marks.get(each.effect, "")


def _value(text: str | None) -> str:
    if text is None:
        return "unset"
    return _code(text) if text else "empty"


def _code(text: str) -> str:
    return f"`{text}`"


def _listed(properties: Iterable[Property]) -> str:
    return ", ".join(_code(each.name) for each in properties)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
