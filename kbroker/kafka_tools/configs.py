"""The kafka-configs tool: settings of topics, brokers, loggers, groups, users, clients and IPs."""

from __future__ import annotations

import functools
import itertools
import re
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.cli.output import say
from kbroker.text.pairs import parse_pairs

from . import client_configs
from .base import Parser, exit_with_message, run, topic_names

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation, Resource, Setting
    from kbroker.config.property import Property, Value

NOTHING_TO_ALTER = "kafka-configs: --alter needs --add-config, --add-config-file or --delete-config"
_BRACKETS = "put values with commas in [brackets]"
_ADD, HIDDEN = "--add-config", "[hidden]"
LOGGERS = "broker-loggers"
KINDS = ("topics", "brokers", LOGGERS, "groups")
# Kafka's names of config sources (KIP-226).
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


@dataclass(frozen=True, slots=True)
class _Entity:
    """An entity with settings; `name` is empty for the default of all brokers."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind[:-1]} {self.name}"

    @property
    def resource(self) -> Resource:
        from kbroker.client.configs import Resource

        return Resource[self.kind[:-1].upper().replace("-", "_")]


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-configs", "kbroker config set`, `kbroker topic alter-config")
    parser.add_flags("--describe", "--alter", "--all", "--entity-default", "--broker-defaults")
    parser.add_lists("--entity-type", "--entity-name")
    parser.add_values("--topic", "--broker", "--group", "--add-config", "--add-config-file")
    parser.add_values("--delete-config", "--user", "--client", "--ip", "--client-metrics")
    parser.add_values("--broker-logger")
    parser.add_flags("--user-defaults", "--client-defaults", "--ip-defaults")
    parser.add_ignored("--force", flag=True)
    options = parser.parse_args(arguments)
    if options.describe == options.alter:
        parser.error("give either --describe or --alter")
    command_line = without_secrets(arguments)
    run(
        parser,
        options,
        _work(parser, options, command_line),
        functools.partial(_failed, command_line),
    )


def _failed(command_line: str, text: str) -> None:
    say(f"Error while executing config command with args '{command_line}'", text, err=True)


def _work(
    parser: Parser, options: Namespace, command_line: str
) -> Callable[[ClusterClient], Awaitable[None]]:
    """Return the operation that the options ask for."""
    clients = client_configs.entities_of(parser, options)
    if clients and options.describe:
        return lambda cluster: client_configs.describe(cluster, clients)
    if clients:
        added = _parse_added(options.add_config or "")
        deleted = [
            each.strip() for each in (options.delete_config or "").split(",") if each.strip()
        ]
        if not added and not deleted:
            exit_with_message(NOTHING_TO_ALTER)
        return lambda cluster: client_configs.alter(cluster, clients, added, deleted, command_line)
    entity = _entity(parser, options)
    work = _describe if options.describe else _alter
    return lambda cluster: work(cluster, entity, options, command_line)


def _entity(parser: Parser, options: Namespace) -> _Entity | None:
    """Return the entity in the options; None means all topics."""
    if options.client_metrics:
        parser.exit_with_message("client metrics are not supported")
    shorts = [("topics", options.topic), ("brokers", options.broker), ("groups", options.group)]
    shorts.append((LOGGERS, options.broker_logger))
    found = [_Entity(kind, name) for kind, name in shorts if name is not None]
    if options.broker_defaults:
        found.append(_Entity("brokers", ""))
    for kind in options.entity_type:
        if kind not in KINDS:
            parser.exit_with_message(f"entity type {kind} is not supported")
        has_default = options.entity_default and kind != LOGGERS
        if options.entity_name or has_default:
            found.append(_Entity(kind, "" if has_default else options.entity_name[0]))
    if len(found) > 1 or not (found or options.entity_type):
        parser.error("name one topic, broker or group: --entity-type topics --entity-name NAME")
    if not found and options.entity_type == [LOGGERS]:
        action = "--alter" if options.alter else "--describe"
        exit_with_message(f"An entity name must be specified with {action} of {LOGGERS}")
    if not found and (options.alter or options.entity_type != ["topics"]):
        parser.error("--entity-name is missing")
    if found and found[0].kind == LOGGERS and not found[0].name.lstrip("+-").isdecimal():
        exit_with_message(
            f"The entity name for {LOGGERS} must be a valid integer broker id, but it is: "
            f"{found[0].name}"
        )
    return found[0] if found else None


async def _describe(
    cluster: ClusterClient, entity: _Entity | None, options: Namespace, command_line: str
) -> None:
    if entity is None:
        for name in await topic_names(cluster):
            await _describe_one(cluster, _Entity("topics", name), options)
    else:
        await _describe_one(cluster, entity, options)


async def _describe_one(cluster: ClusterClient, entity: _Entity, options: Namespace) -> None:
    from kbroker.client.configs import describe_configs

    if not await _may_exist(cluster, entity, is_all=options.all):
        _print_missing(entity)
        return
    described = await describe_configs(cluster, entity.resource, [entity.name], synonyms=True)
    settings = sorted(described[entity.name], key=lambda each: each.name)
    own = [each for each in settings if each.is_own]
    if entity.kind == "groups" and not own and not await _is_group(cluster, entity.name):
        _print_missing(entity)
        return
    if not entity.name:
        say("Default configs for brokers in the cluster are:")
    else:
        say(f"{'All' if options.all else 'Dynamic'} configs for {entity.text} are:")
    say(*map(_line, settings if options.all and entity.name else own))


async def _may_exist(cluster: ClusterClient, entity: _Entity, *, is_all: bool) -> bool:
    """Return False for a topic that does not exist, and for loggers of a broker that does not."""
    if entity.kind == LOGGERS and not is_all:
        brokers = (await cluster.metadata([])).brokers
        return entity.name in {str(each.node_id) for each in brokers}
    return entity.kind != "topics" or entity.name in await topic_names(cluster)


def _print_missing(entity: _Entity) -> None:
    say(f"The {entity.kind[:-1]} '{entity.name}' doesn't exist and doesn't have dynamic config.")


async def _is_group(cluster: ClusterClient, name: str) -> bool:
    from kbroker.client.groups import list_groups

    return name in {each.name for each in await list_groups(cluster)}


def _line(setting: Setting) -> str:
    synonyms = ", ".join(
        f"{SOURCES.get(each.source, 'UNKNOWN')}:{each.name}={_value(each.value)}"
        for each in setting.synonyms
    )
    secret = str(setting.sensitive).lower()
    return f"  {setting.name}={_value(setting.value)} sensitive={secret} synonyms={{{synonyms}}}"


def _value(value: str | None) -> str:
    return "null" if value is None else value


async def _alter(
    cluster: ClusterClient, entity: _Entity | None, options: Namespace, command_line: str
) -> None:
    from kbroker.client.configs import alter_configs
    from kbroker.protocol.errors import KafkaError

    assert entity is not None
    changes = _changes(options, is_logger=entity.kind == LOGGERS)
    if not changes:
        exit_with_message(NOTHING_TO_ALTER)
    if entity.kind == LOGGERS:
        await _check_loggers(cluster, entity, changes)
    try:
        await alter_configs(cluster, entity.resource, entity.name, changes)
    except KafkaError as error:
        client_configs.fail(command_line, error.code, error.message)
    if not entity.name:
        say("Completed updating default config for brokers in the cluster.")
    else:
        say(f"Completed updating config for {entity.text}.")


async def _check_loggers(
    cluster: ClusterClient, entity: _Entity, changes: Mapping[str, tuple[Operation, str | None]]
) -> None:
    """Exit with an error message if a logger does not exist: deleted ones first, as in Kafka."""
    from kbroker.client.configs import Operation, describe_configs

    described = await describe_configs(cluster, entity.resource, [entity.name])
    known = {each.name for each in described[entity.name]}
    missing = [name for name in changes if name not in known]
    missing.sort(key=lambda name: changes[name][0] is not Operation.DELETE)
    if missing:
        exit_with_message(f"Invalid broker logger(s): {','.join(missing)}")


def _changes(options: Namespace, *, is_logger: bool) -> Mapping[str, tuple[Operation, str | None]]:
    from kbroker.client.configs import Operation

    added = _parse_added(options.add_config or "", is_logger=is_logger)
    if options.add_config_file is not None:
        from pathlib import Path

        from kbroker.config.property import ConfigError
        from kbroker.config.sources import read_file

        try:
            added = read_file(Path(options.add_config_file))
        except ConfigError as error:
            exit_with_message(str(error))
    changes: dict[str, tuple[Operation, str | None]] = {
        name: (Operation.SET, value) for name, value in added.items()
    }
    for name in (options.delete_config or "").split(","):
        if name.strip():
            changes[name.strip()] = (Operation.DELETE, None)
    return changes


def _parse_added(text: str, *, is_logger: bool = False) -> dict[str, str]:
    """Parse k1=v1,k2=[a,b],k3=v3; brackets enclose values with commas."""
    try:
        items = _items(text)
    except ValueError as error:
        exit_with_message(f"kafka-configs: --add-config: {error}; {_BRACKETS}")
    after_secret = [] if is_logger else [*itertools.dropwhile(_is_public, items)][1:]
    if not all(map(_is_setting, after_secret)):
        exit_with_message(
            f"kafka-configs: --add-config: an item after a secret is not a setting; {_BRACKETS}"
        )
    return {name: re.sub(r"[\[\]]", "", value) for name, value in items.items()}


def _items(text: str) -> dict[str, str]:
    """Split the text of --add-config.

    Raises:
        ValueError: An item has no `=`.
    """
    return parse_pairs(part for part in re.split(r",(?![^\[\]]*\])", text) if part.strip())


def without_secrets(arguments: Sequence[str]) -> str:
    """Return a command line for messages; hide --add-config if an item may be a secret.

    Levels of loggers are never secrets.
    """
    if any(word.startswith(("--broker-logger", LOGGERS)) for word in arguments):
        return " ".join(arguments)
    command_line, is_value = [], False
    for word in arguments:
        option, equals, value = word.partition("=")
        is_option = len(option) > 2 and _ADD.startswith(option)  # may be abbreviated, as in Kafka
        if is_value:
            command_line.append(_public_or_hidden(word))
        elif is_option and equals:
            command_line.append(f"{option}={_public_or_hidden(value)}")
        else:
            command_line.append(word)
        is_value = is_option and not equals and not is_value
    return " ".join(command_line)


def _public_or_hidden(added: str) -> str:
    try:
        is_public = all(map(_is_public, _items(added)))
        return added if is_public else HIDDEN
    except ValueError:
        return HIDDEN


def _is_public(name: str) -> bool:
    """Return True if the values of a setting are not secrets."""
    from kbroker.security.quotas import QuotaKey

    found = _property(name)
    return name in set(QuotaKey) if found is None else not found.sensitive


def _is_setting(name: str) -> bool:
    """Return True if an entity of Kafka has a setting of this name."""
    from kbroker.security.scram import ScramMechanism

    is_known = _is_public(name) or _property(name) is not None or name in set(ScramMechanism)
    return is_known or name.startswith("listener.name.")


def _property(name: str) -> Property[Value] | None:
    from kbroker.config import BROKER_PROPERTIES, GROUP_PROPERTIES, TOPIC_PROPERTIES

    tables = (BROKER_PROPERTIES, TOPIC_PROPERTIES, GROUP_PROPERTIES)
    return next((table[name] for table in tables if name in table), None)
