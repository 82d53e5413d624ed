"""SCRAM credentials of users, changed while brokers run (KIP-554)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, salted_password

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import NoSuchUser, check


class ScramUser(NamedTuple):
    """A user with the iteration count by SCRAM mechanism."""

    name: str
    iterations: dict[ScramMechanism, int]


async def describe_scram_users(
    cluster: ClusterClient, names: Iterable[str] = ()
) -> list[ScramUser]:
    """Return users sorted by name; all users if `names` is empty.

    Raises:
        NoSuchUser: A named user does not exist.
        KafkaError: The broker rejects the request.
    """
    rows = [DescribeUserScramCredentialsRequest.User(name=each) for each in dict.fromkeys(names)]
    request = DescribeUserScramCredentialsRequest(users=rows or None)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code, answer.error_message)
    return [_user(row) for row in sorted(answer.results, key=lambda row: str(row.user))]


def _user(row: DescribeUserScramCredentialsResponse.User) -> ScramUser:
    if row.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        raise NoSuchUser(row.user)
    check(row.error_code, row.error_message)
    return ScramUser(
        row.user,
        {
            mechanism: each.iterations
            for mechanism in ScramMechanism
            for each in row.credential_infos
            if each.mechanism == mechanism.number
        },
    )


async def served_scram_mechanisms(cluster: ClusterClient) -> tuple[ScramMechanism, ...] | None:
    """Return the SCRAM mechanisms that clients can use at a listener of a broker.

    Returns:
        The mechanisms of the listener that this client uses, if it authenticates with SASL. Else
        those of all SASL listeners, or None if this user may not describe the configuration.
    """
    mechanisms = await cluster.login_mechanisms()
    if mechanisms is not None:
        return tuple(each for each in ScramMechanism if each in mechanisms)
    node = (await cluster.metadata([])).brokers[0].node_id
    try:
        described = await describe_configs(cluster, Resource.BROKER, [str(node)])
    except KafkaError:
        return None
    settings = {each.name: each.value or "" for each in described[str(node)]}
    protocols = dict(_pairs(settings.get("listener.security.protocol.map", ""), ":"))
    served: set[str] = set()
    for name, _ in _pairs(settings.get("listeners", ""), "://"):
        if protocols.get(name, "").upper().startswith("SASL_"):
            listener_setting = f"listener.name.{name.lower()}.sasl.enabled.mechanisms"
            texts = settings.get(listener_setting) or settings.get("sasl.enabled.mechanisms", "")
            served.update(each.strip() for each in texts.split(","))
    return tuple(each for each in ScramMechanism if each in served)


def _pairs(text: str, separator: str) -> list[tuple[str, str]]:
    """Parse comma-separated NAME<separator>VALUE pairs; names become upper case."""
    parts = (each.strip().partition(separator) for each in text.split(","))
    return [(name.strip().upper(), value.strip()) for name, _, value in parts]


async def set_scram_password(
    cluster: ClusterClient,
    name: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    iterations: int = ITERATIONS_MIN,
) -> None:
    """Set the password of a user for one mechanism; create the user if needed.

    Only the salted hash is sent. Use TLS, because the hash is sufficient to authenticate.

    Args:
        cluster: The cluster to change.
        name: User name.
        password: New password.
        mechanism: SCRAM mechanism.
        iterations: Hash iterations.

    Raises:
        KafkaError: The broker rejects the change.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    salted = await trio.to_thread.run_sync(salted_password, mechanism, password, salt, iterations)
    row = AlterUserScramCredentialsRequest.Upsertion(
        name=name,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=salt,
        salted_password=salted,
    )
    await _alter(cluster, AlterUserScramCredentialsRequest(upsertions=[row]))


async def remove_scram_password(
    cluster: ClusterClient, name: str, mechanism: ScramMechanism
) -> None:
    """Remove a user's credential for one mechanism.

    Raises:
        NoSuchUser: The user has no such credential.
        KafkaError: The broker rejects the change.
    """
    row = AlterUserScramCredentialsRequest.Deletion(name=name, mechanism=mechanism.number)
    await _alter(cluster, AlterUserScramCredentialsRequest(deletions=[row]))


async def _alter(cluster: ClusterClient, request: AlterUserScramCredentialsRequest) -> None:
    """Send one change: brokers accept only one change per user and request."""
    answer = await (await cluster.controller()).ask(request)
    (result,) = answer.results
    if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        raise NoSuchUser(result.user)
    check(result.error_code, result.error_message)
