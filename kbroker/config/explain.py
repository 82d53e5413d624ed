"""Facts about a setting for `kbroker config explain`."""

from __future__ import annotations

import re

from .kafka_only import KAFKA_ONLY, find_kafka_only
from .property import ConfigError, Property, Scope, SettingEffect, Value
from .sources import variable_of
from .tables import PROPERTIES, did_you_mean

_EFFECTS = {
    SettingEffect.APPLIED: "applied",
    SettingEffect.NONE: "none: kbroker works differently",
    SettingEffect.LATER: "none yet: the feature is not implemented",
}


def explain(name: str) -> list[dict[str, object]]:
    """Return the facts about a setting, one item for each type of resource that has it.

    Values are strings or lists of strings, or None if a fact does not apply.

    Raises:
        ConfigError: The setting is unknown; the message suggests the most similar name.
    """
    found = [_facts(scope, table[name]) for scope, table in PROPERTIES.items() if name in table]
    if found:
        return found
    other = find_kafka_only(name)
    if other is None:
        every = {*KAFKA_ONLY, *(each for table in PROPERTIES.values() for each in table)}
        raise ConfigError(f"Unknown setting: {name}{did_you_mean(name, sorted(every))}")
    return [
        {
            "name": name,
            "of": "broker",
            "meaning": "A Kafka setting that kbroker accepts by name only.",
            "effect": _EFFECTS[other.effect],
            "changes": "live" if other.dynamic else "restart",
        }
    ]


def search(text: str) -> list[dict[str, object]]:
    """Return the facts about each setting that has all words in its name or description.

    Args:
        text: Words or the beginnings of words, in any order and case. A text with a dot is a name
            and not searched.
    """
    words = [re.compile(rf"\b{re.escape(each)}", re.IGNORECASE) for each in text.split()]
    if "." in text or not words:
        return []
    described = [(name, each.doc) for table in PROPERTIES.values() for name, each in table.items()]
    names = dict.fromkeys(
        name
        for name, doc in [*described, *((name, "") for name in KAFKA_ONLY)]
        if all(word.search(f"{name} {doc}") for word in words)
    )
    return [facts for name in names for facts in explain(name)]


def _facts(scope: Scope, each: Property[Value]) -> dict[str, object]:
    is_broker_setting = scope is Scope.BROKER
    fallbacks = [name for name in each.synonyms if name != each.name or not is_broker_setting]
    return {
        "name": each.name,
        "of": str(scope),
        "meaning": each.doc,
        "type": each.type.name,
        "unit": each.unit or None,
        "default": each.default,
        "kafka_default": each.kafka_default,
        "allowed": each.allowed,
        "changes": "live" if each.dynamic else "restart",
        "effect": _EFFECTS[each.effect],
        ("other_names" if is_broker_setting else "else_from_broker"): fallbacks or None,
        "give_it": _ways_to_set(each.name) if is_broker_setting else None,
        "only_kbroker": "yes" if each.kbroker_only else None,
    }


def _ways_to_set(name: str) -> list[str]:
    return [f"-o {name}=VALUE", f"{variable_of(name)}=VALUE", "a line in the file of --config"]
