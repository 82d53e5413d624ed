"""Completion of names and values of Kafka's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kbroker.config.property import Property, Scope, Value

    Items = list[CompletionItem[str]]


def complete_topic_settings(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return NAME= for settings of topics, or values after `=`."""
    from kbroker.config.property import Scope

    return _pairs(Scope.TOPIC, incomplete)


def complete_broker_settings(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return NAME= for settings of brokers, or values after `=`."""
    from kbroker.config.property import Scope

    return _pairs(Scope.BROKER, incomplete)


def complete_topic_setting_names(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the names of settings of topics."""
    from kbroker.config.property import Scope

    return _names([Scope.TOPIC], incomplete)


def complete_group_settings(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return NAME= for settings of groups, or values after `=`."""
    from kbroker.config.property import Scope

    return _pairs(Scope.GROUP, incomplete)


def complete_group_setting_names(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the names of settings of groups."""
    from kbroker.config.property import Scope

    return _names([Scope.GROUP], incomplete)


def complete_broker_setting_names(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the names of settings of brokers."""
    from kbroker.config.property import Scope

    return _names([Scope.BROKER], incomplete)


def complete_setting_names(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Return the names of settings of brokers, topics, groups and metrics subscriptions."""
    from kbroker.config.property import Scope

    return _names(list(Scope), incomplete)


def _names(scopes: list[Scope], incomplete: str, end: str = "") -> Items:
    from click.shell_completion import CompletionItem

    from kbroker.config import PROPERTIES

    found = {name: each for scope in scopes for name, each in PROPERTIES[scope].items()}
    return [
        CompletionItem(name + end, help=_summary(each))
        for name, each in sorted(found.items())
        if name.startswith(incomplete)
    ]


def _pairs(scope: Scope, incomplete: str) -> Items:
    from click.shell_completion import CompletionItem

    from kbroker.config import PROPERTIES

    name, equals, value = incomplete.partition("=")
    if not equals:
        return _names([scope], incomplete, end="=")
    known = PROPERTIES[scope].get(name)
    if known is None:
        return []
    return [CompletionItem(f"{name}={each}") for each in _values(known, value)]


def _values(known: Property[Value], typed: str) -> list[str]:
    """Return values that start with the typed text: choices, or else the default."""
    from kbroker.config.property import Type

    before = ""
    choices = list(known.choices)
    if known.type is Type.BOOLEAN:
        choices = ["true", "false"]
    elif known.type is Type.LIST and choices:
        items, comma, _ = typed.rpartition(",")
        before = items + comma
        choices = [each for each in choices if each not in items.split(",")]
    elif not choices and known.default and not typed:
        choices = [known.default]
    return [before + each for each in choices if (before + each).startswith(typed)]


def _summary(known: Property[Value]) -> str:
    """Return the first sentence of the description, without markup."""
    return known.doc.partition(". ")[0].replace("`", "").rstrip(".")
