"""Topics as text: `NAME:PARTITIONS:k=v,...` on the command line, TOML and JSON files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.text.documents import read_json, read_toml
from kbroker.text.pairs import parse_pairs

DEFAULT = -1


class DeclaredTopic(NamedTuple):
    """A topic to create; `DEFAULT` leaves a number to the broker."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: dict[str, str] = {}  # noqa: RUF012  # never changed


class BadTopic(ValueError):
    """A text or file does not declare a valid topic; the message has the reason."""


def parse_topic(text: str) -> DeclaredTopic:
    """Parse NAME[:PARTITIONS[:K=V,...]].

    Raises:
        BadTopic: The text is invalid.
    """
    name, _, rest = text.partition(":")
    count, _, configs = rest.partition(":")
    if count and not count.isdecimal():
        raise BadTopic(
            f"invalid number of partitions {count!r}; expected NAME:PARTITIONS:KEY=VALUE,..."
        )
    pairs = parse_configs(configs.split(",") if configs else [])
    return DeclaredTopic(name, int(count or DEFAULT), configs=pairs)


def parse_configs(texts: Iterable[str]) -> dict[str, str]:
    """Parse KEY=VALUE strings of topic settings; values may have units.

    Raises:
        BadTopic: A string is invalid.
    """
    try:
        return _plain_configs(parse_pairs(texts))
    except ValueError as error:
        raise BadTopic(str(error)) from None


def _plain_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Return topic settings with plain numbers. Raises ConfigError."""
    from kbroker.config import Scope, plain_numbers

    return plain_numbers(Scope.TOPIC, {name: text.strip() for name, text in configs.items()})


def read_topics(path: Path) -> list[DeclaredTopic]:
    """Read the topics in a file: TOML if the file name ends in `.toml`, else JSON.

    Raises:
        BadTopic: The file is invalid; the message has its name.
    """
    try:
        return parse_topics(path.read_text(encoding="utf-8"), toml=path.suffix == ".toml")
    except (OSError, ValueError) as error:
        raise BadTopic(f"{path}: {error}") from None


def parse_topics(text: str, *, toml: bool) -> list[DeclaredTopic]:
    """Parse topics in the JSON of `topic describe`, or in TOML.

    TOML has a table `[topics.NAME]` for each topic, with `partitions`, `replication_factor` and a
    table `configs`.

    Raises:
        BadTopic: The text is invalid.
    """
    try:
        return [_declared_topic(row) for row in (_toml_rows(text) if toml else _json_rows(text))]
    except ValueError as error:
        raise BadTopic(str(error)) from None


def _toml_rows(text: str) -> list[dict[str, object]]:
    topics = read_toml(text).get("topics")
    if not isinstance(topics, dict) or not all(isinstance(each, dict) for each in topics.values()):
        raise BadTopic("no table [topics.NAME]")
    return [{"name": name, **settings} for name, settings in topics.items()]


def _json_rows(text: str) -> list[dict[str, object]]:
    try:
        data = read_json(text)
    except ValueError:
        data = [read_json(line) for line in text.splitlines() if line.strip()]
    rows = data if isinstance(data, list) else [data]
    objects: list[dict[str, object]] = [{**row} for row in rows if isinstance(row, dict)]
    if len(objects) < len(rows):
        raise BadTopic('expected a topic object such as {"name": "orders", "partitions": 3}')
    return objects


# Fields of `topic describe` that are not needed to create a topic.
_IGNORED_FIELDS = frozenset({"topic_id", "internal"})
_FIELDS = frozenset({"name", "partitions", "replication_factor", "configs"})


def _declared_topic(row: dict[str, object]) -> DeclaredTopic:
    name = row.get("name")
    if not isinstance(name, str):
        raise BadTopic("a topic has no name")
    unknown = sorted(row.keys() - _FIELDS - _IGNORED_FIELDS)
    if unknown:
        raise BadTopic(f"topic {name}: unknown field {unknown[0]!r} (valid: {sorted(_FIELDS)})")
    partitions = row.get("partitions", DEFAULT)
    count = len(partitions) if isinstance(partitions, list) else partitions
    factor = row.get("replication_factor", DEFAULT)
    configs = row.get("configs", {})
    if not isinstance(count, int) or not isinstance(factor, int) or not isinstance(configs, dict):
        raise BadTopic(
            f"topic {name}: partitions and replication_factor must be integers, configs a table"
        )
    texts = {key: _config_text(value) for key, value in configs.items()}
    return DeclaredTopic(name, count, factor, _plain_configs(texts))


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
