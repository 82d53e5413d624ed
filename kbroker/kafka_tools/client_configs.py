"""Quotas and SCRAM credentials in kafka-configs: entity types users, clients and ips."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from kbroker.cli.output import say
from kbroker.config.property import java_double
from kbroker.security.quotas import CLIENT_ID, IP, USER, Entity, QuotaKey
from kbroker.security.scram import ITERATIONS_MIN, ScramMechanism

from .base import FAILED, Parser, exit_with_message, java_exception_text

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.quotas import ClientQuota
    from kbroker.client.scram_users import ScramUser
    from kbroker.protocol.errors import ErrorCode

# Entity types of the tool, and their names in the protocol.
TYPES = {"users": USER, "clients": CLIENT_ID, "ips": IP}
_QUOTA_LABELS = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}
_IP_KEYS = {QuotaKey.CONNECTION_CREATION_RATE}
_CLIENT_KEYS = set(QuotaKey) - _IP_KEYS


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """An entity type with a name, with the default entity (None), or with all names (`is_any`)."""

    kind: str
    name: str | None
    is_any: bool = False

    @property
    def text(self) -> str:
        """The entity in messages such as "Completed updating config for ..."."""
        singular = self.kind.removesuffix("s")
        return (
            f"default config for {self.kind} in the cluster"
            if self.name is None
            else (f"config for {singular} {self.name}")
        )


def entities_of(parser: Parser, options: Namespace) -> list[QuotaEntity]:
    """Return the users, clients or IP addresses in the options; an empty list if there are none."""
    found = list(_paired_entities(options))
    for kind, option in (("clients", "client"), ("users", "user"), ("ips", "ip")):
        name = getattr(options, option)
        if name is not None:
            found.append(QuotaEntity(kind, name))
        elif getattr(options, f"{option}_defaults"):
            found.append(QuotaEntity(kind, None))
    kinds = [each.kind for each in found]
    if len(set(kinds)) < len(kinds) or ("ips" in kinds and len(kinds) > 1):
        parser.error("name a user, a client, both of them, or an IP")
    if options.alter and any(each.is_any for each in found):
        parser.error("--entity-name is missing")
    return found


def _paired_entities(options: Namespace) -> Iterator[QuotaEntity]:
    """Pair each `--entity-type` with the next `--entity-name`, or with the default entity."""
    names = list(options.entity_name)
    for kind in options.entity_type:
        if kind not in TYPES:
            continue
        if names:
            yield QuotaEntity(kind, names.pop(0))
        else:
            yield QuotaEntity(kind, None, is_any=not options.entity_default)


async def describe(cluster: ClusterClient, entities: Sequence[QuotaEntity]) -> None:
    """Print quotas, and SCRAM credentials if the only entity is a user."""
    from kbroker.client.quotas import describe_quotas

    named = {TYPES[each.kind]: each.name for each in entities if not each.is_any}
    kinds = {TYPES[each.kind] for each in entities}
    for quota in await describe_quotas(cluster, named):
        if quota.entity.keys() == kinds:
            say(_quota_line(quota))
    if kinds == {USER}:
        (only,) = entities
        if only.is_any or only.name is not None:
            for user in await _scram_users(cluster, only):
                parse_pairs_or_exit = [
                    f"{each}=iterations={count}" for each, count in user.iterations.items()
                ]
                say(
                    f"SCRAM credential configs for user-principal '{user.name}' are "
                    f"{', '.join(parse_pairs_or_exit)}"
                )


async def _scram_users(cluster: ClusterClient, only: QuotaEntity) -> list[ScramUser]:
    from kbroker.client.errors import NoSuchUser
    from kbroker.client.scram_users import describe_scram_users

    try:
        return await describe_scram_users(cluster, [] if only.name is None else [only.name])
    except NoSuchUser:
        return []


def _quota_line(quota: ClientQuota) -> str:
    entity = ", ".join(
        f"the default {_QUOTA_LABELS[kind]}" if name is None else f"{_QUOTA_LABELS[kind]} '{name}'"
        for kind, name in quota.entity.items()
    )
    values = ", ".join(f"{key}={java_double(value)}" for key, value in quota.values.items())
    return f"Quota configs for {entity} are {values}"


async def alter(
    cluster: ClusterClient,
    entities: Sequence[QuotaEntity],
    added: Mapping[str, str],
    deleted: Sequence[str],
    command_line: str,
) -> None:
    """Change quotas, or SCRAM credentials of one user. Exit with an error message on a failure."""
    from kbroker.client.errors import NoSuchUser
    from kbroker.client.quotas import alter_quotas
    from kbroker.protocol.errors import ErrorCode, KafkaError

    kinds = {TYPES[each.kind] for each in entities}
    _check_names(kinds, added, deleted)
    try:
        if any(name in {*ScramMechanism} for name in (*added, *deleted)):
            await _alter_user(cluster, entities[0].name or "", added, deleted)
        else:
            entity: Entity = {TYPES[each.kind]: each.name for each in entities}
            values: dict[str, float | None] = {key: _number(text) for key, text in added.items()}
            await alter_quotas(cluster, entity, values | dict.fromkeys(deleted))
    except NoSuchUser:
        message = "Attempt to delete a user credential that does not exist"
        fail(command_line, ErrorCode.RESOURCE_NOT_FOUND, message)
    except KafkaError as error:
        fail(command_line, error.code, error.message)
    say(f"Completed updating {entities[0].text}.")


def fail(command_line: str, code: ErrorCode, message: str | None) -> NoReturn:
    """Print why kafka-configs could not change a setting, as Kafka's tool does, and exit.

    Args:
        command_line: The arguments of the command, without secrets.
        code: Error code of the response.
        message: Error message of the response.
    """
    reason = java_exception_text(code, message)
    say(
        f"Error while executing config command with args '{command_line}'",
        f"java.util.concurrent.ExecutionException: {reason}",
        f"Caused by: {reason}",
        err=True,
    )
    sys.exit(FAILED)


def _check_names(kinds: set[str], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Exit with an error message for settings that these entities do not have."""
    given = [*added, *deleted]
    verb = "added" if added else "deleted"
    if kinds == {IP}:
        unknown = ",".join(each for each in given if each not in _IP_KEYS)
        if unknown:
            exit_with_message(
                f"Only connection quota configs can be {verb} for 'ips' using --bootstrap-server. "
                f"Unexpected config names: {unknown}"
            )
        return
    mechanisms = {*ScramMechanism} if kinds == {USER} else set()
    unknown = ", ".join(each for each in given if each not in (*_CLIENT_KEYS, *mechanisms))
    if unknown and kinds == {USER}:
        exit_with_message(
            f"Only quota and SCRAM credential configs can be {verb} for 'users' using "
            f"--bootstrap-server. Unexpected config names: {unknown}"
        )
    if unknown:
        exit_with_message(
            f"Only quota configs can be {verb} for 'clients' using --bootstrap-server. Unexpected "
            f"config names: {unknown}"
        )
    if len({each in mechanisms for each in given}) > 1:
        exit_with_message(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using "
            "--bootstrap-server."
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        exit_with_message(f"Cannot parse quota configuration value as a double: {text}")


async def _alter_user(
    cluster: ClusterClient, name: str, added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    from kbroker.client.scram_users import remove_scram_password, set_scram_password
    from kbroker.protocol.errors import ErrorCode, KafkaError

    changes = [(mechanism, _credential(mechanism, text)) for mechanism, text in added.items()]
    if len(changes) + len(deleted) > 1:
        message = "A user credential cannot be altered twice in the same request"
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
    for mechanism, (password, iterations) in changes:
        await set_scram_password(cluster, name, password, ScramMechanism(mechanism), iterations)
    for mechanism in deleted:
        await remove_scram_password(cluster, name, ScramMechanism(mechanism))


def _credential(mechanism: str, text: str) -> tuple[str, int]:
    """Parse iterations=NUMBER,password=TEXT; iterations are optional."""
    match = re.fullmatch(r"(?:iterations=(?P<count>-?\d+),)?password=(?P<password>.*)", text)
    if match is None:
        exit_with_message(
            f"Invalid credential property of {mechanism}: expected [iterations=NUMBER,password=TEXT]"
        )
    count = int(match["count"] or -1)
    if count == -1:
        count = ITERATIONS_MIN
    if count < ITERATIONS_MIN:
        exit_with_message(
            f"Iterations {count} is less than the minimum {ITERATIONS_MIN} required for {mechanism}"
        )
    return match["password"], count
