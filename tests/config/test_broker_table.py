"""The table of settings compared with Apache Kafka's and with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kbroker.config import (
    BROKER_PROPERTIES,
    PROPERTIES,
    TOPIC_PROPERTIES,
    BrokerConfig,
    Property,
    Scope,
    SettingEffect,
    TopicConfig,
    Value,
)
from kbroker.config.tables import effect_of

from .entries import ROOT, KafkaSetting, kafka_settings, settings_of


def own_and_kafka(scope: str) -> Iterator[tuple[Property[Value], KafkaSetting]]:
    theirs = kafka_settings(scope)
    return (
        (each, theirs[each.name])
        for each in PROPERTIES[Scope[scope.upper()]].values()
        if each.name in theirs
    )


# The table


@pytest.mark.parametrize(
    ("scope", "number"), [("topic", 37), ("broker", 160), ("group", 21), ("client_metrics", 3)]
)
def test_settings_match_kafka_unless_marked_different(scope: str, number: int) -> None:
    compared = 0
    for ours, kafka in own_and_kafka(scope):
        default = ours.default if ours.kafka_default is None else ours.kafka_default
        shown = {None: "-", "none: must be set": "!"}.get(default, default)
        dynamic = ours.dynamic or ours.kafka_dynamic
        ours_row = (ours.type.name, shown, "dynamic" if dynamic else "read-only")
        assert ours_row == (kafka.type, kafka.default, kafka.change), ours.name
        assert ours.kafka_default is None or ours.default != ours.kafka_default, ours.name
        compared += 1
    assert compared >= number


@pytest.mark.parametrize("scope", [Scope.TOPIC, Scope.GROUP, Scope.CLIENT_METRICS])
def test_table_has_every_kafka_setting(scope: Scope) -> None:
    shown = {name for name, each in PROPERTIES[scope].items() if not each.internal}
    assert shown == kafka_settings(scope.name.lower()).keys()


def test_own_settings_are_missing_in_kafka() -> None:
    kafka = kafka_settings("broker")
    own = {each.name for each in BROKER_PROPERTIES.values() if each.kbroker_only}
    # Kafka names outside its broker settings: of its authorizer, and quotas that tools set.
    unused = {
        "super.users",
        "allow.everyone.if.no.acl.found",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
    assert own == BROKER_PROPERTIES.keys() - kafka.keys() - unused


def test_every_kafka_broker_setting_is_known() -> None:
    assert [name for name in kafka_settings("broker") if effect_of(name) is None] == []


@pytest.mark.parametrize("scope", list(Scope))
def test_every_setting_has_description_and_valid_default(scope: Scope) -> None:
    for name, each in PROPERTIES[scope].items():
        assert each.name == name
        assert each.doc.endswith("."), name
        assert all(synonym in BROKER_PROPERTIES for synonym in each.synonyms), name
        if each.default is not None:
            assert each.format(each.parse(each.default)) == each.default, name


def test_topic_defaults_equal_broker_defaults() -> None:
    broker = BrokerConfig()
    for each in TOPIC_PROPERTIES.values():
        if each.synonyms:
            assert each.format(broker.first_set(each.synonyms)) == each.default, each.name


# What the settings do

# Settings that the code reads through another attribute.
DERIVED = {
    "replica.selector.class": "uses_rack_aware_selector",
    "advertised.listeners": "advertised_listeners",
    "broker.rack": "rack",
    "controller.listener.names": "listeners",
    "internal.segment.bytes": "segment_bytes",
    "listeners": "listeners",
    "log.dir": "log_dirs",
    "max.connections.per.ip": "connections_max_from",
    "max.connections.per.ip.overrides": "connections_max_from",
    "log.dirs": "log_dirs",
    "segment.bytes": "segment_bytes",
}


def attributes() -> dict[str, str]:
    """Return the attribute through which the code reads each setting."""
    members = settings_of(TopicConfig) | settings_of(BrokerConfig)
    return {each.name: name for name, each in members.items()} | DERIVED


def names_used_in_code() -> tuple[set[str], set[str], set[str]]:
    """Return all attribute names and string constants outside the table, and patterns of f-strings."""
    sources = [p for p in (ROOT / "kbroker").rglob("*.py") if "config" not in p.parts]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    composed = {pattern_of(node) for node in nodes if isinstance(node, ast.JoinedStr)}
    return names, texts, {each for each in composed if each.startswith(r"group\.")}


def pattern_of(text: ast.JoinedStr) -> str:
    """Return a regular expression for the values of an f-string."""
    parts = [
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[\w.]+"
        for part in text.values
    ]
    return "".join(parts)


# Prefixes of settings that are read by computed names; test_config_effects.py tests their effects.
KINDS_OF_GROUPS = ("group.consumer.", "group.share.", "group.streams.")


@pytest.mark.slow
def test_applied_settings_are_read_by_the_code() -> None:
    names, texts, composed = names_used_in_code()
    attribute = attributes()
    read = {
        name
        for name in (*TOPIC_PROPERTIES, *BROKER_PROPERTIES)
        if attribute.get(name) in names
        or name in texts
        or (name.startswith(KINDS_OF_GROUPS) and any(re.fullmatch(p, name) for p in composed))
    }
    read |= {
        synonym
        for name in read & TOPIC_PROPERTIES.keys()
        for synonym in TOPIC_PROPERTIES[name].synonyms
    }
    if "node.id" in read:
        read.add("broker.id")
    every = (*TOPIC_PROPERTIES.values(), *BROKER_PROPERTIES.values())
    applied = {each.name for each in every if each.effect is SettingEffect.APPLIED}
    unused = {each.name for each in every} - applied
    assert sorted(applied - read) == [], "read them, or mark them LATER in the table"
    assert sorted(n for n in unused if attribute.get(n) in names) == [], "mark them APPLIED"


# Documentation


def test_config_imports_no_heavy_modules() -> None:
    """Every start imports this package, so it must be cheap."""
    code = "import sys; before = set(sys.modules); import kbroker.config; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    heavy = {"trio", "asyncio", "ssl", "socket", "difflib", "tomllib", "decimal", "click"}
    assert not heavy & set(run.stdout.split())
