"""Kafka's settings, and helpers for settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kbroker.config import (
    BrokerConfig,
    ConfigEntry,
    Property,
    TopicConfig,
    Value,
)
from kbroker.config.property import Settings

ROOT = Path(__file__).parents[2]


class KafkaSetting(NamedTuple):
    scope: str
    name: str
    type: str
    default: str
    change: str


def kafka_settings(scope: str) -> dict[str, KafkaSetting]:
    text = (ROOT / "tests/data/kafka-4.4-settings.tsv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = [KafkaSetting(*line.split("\t")) for line in lines]
    return {row.name: row for row in rows if row.scope == scope}


def topic(**overrides: str) -> TopicConfig:
    return TopicConfig({k.replace("_", "."): v for k, v in overrides.items()}, BrokerConfig())


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(each for each in entries if each.name == name)


def settings_of(owner: type[Settings]) -> dict[str, Property[Value]]:
    """Return the settings that a class's attributes read, except overridden ones."""
    found = {name: getattr(owner, name) for name in dir(owner)}
    return {name: each for name, each in found.items() if isinstance(each, Property)}
