"""Hints of the command line: the next action after an error, with commands and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kbroker.client.errors import DENIED, ClientError, next_action
from kbroker.protocol.errors import ErrorCode

from .access import Access

_HINTS: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS: "pass --if-not-exists to keep it unchanged",
        ErrorCode.INVALID_REPLICATION_FACTOR: "`kbroker cluster info` shows the number of brokers",
        ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes with "
        "`kbroker topic alter-config TOPIC --set max.message.bytes=BYTES`",
        ErrorCode.NOT_ENOUGH_REPLICAS: "`kbroker cluster health` shows which brokers are missing",
        ErrorCode.REQUEST_TIMED_OUT: "`kbroker cluster health` shows whether all brokers are running",
        ErrorCode.DELEGATION_TOKEN_EXPIRED: "create a new token with `kbroker security token create`",
        **dict.fromkeys(
            DENIED,
            "run `kbroker security acl explain` as a user that may describe ACLs to see which one is missing",
        ),
        ErrorCode.OFFSET_OUT_OF_RANGE: "`kbroker topic describe TOPIC` shows the available offsets",
    }
)


# The setting that a message about an invalid setting of Kafka or kbroker means.
_SETTINGS: Final = (
    re.compile(r"did you mean ([\w.-]+)\?$"),
    re.compile(r"for configuration ([\w.-]*\w)"),
)
_DENIED_KINDS: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    }
)


def denial_text(
    code: ErrorCode, message: str, user: str | None, needed: Sequence[Access]
) -> str | None:
    """Return a message about a missing permission, with the command that explains it.

    Args:
        code: Error code of the broker.
        message: Error message, which may name the resource.
        user: Principal of the client, or None if it is not known.
        needed: Operations of the command.

    Returns:
        The message, or None if the error is another one or no operation fits.
    """
    kind = _DENIED_KINDS.get(code)
    if kind is None or not needed:
        return None
    # A producer without WRITE on any topic gets the error of the cluster (KIP-679).
    fitting = [each for each in needed if each.kind == kind] or list(needed)
    operation, kind, name = next((each for each in fitting if each.name in message), fitting[0])
    resource = f"{kind} {name}".rstrip()
    option = f"--{kind} {shlex.quote(name)}" if name else f"--{kind}"
    command = (
        f"kbroker security acl explain --principal {shlex.quote(user or 'NAME')} "
        f"--operation {operation} {option}"
    )
    return (
        f"{user or 'this user'} may not {operation.upper()} {resource} ({code.name}); "
        f"as an administrator, run `{command}`"
    )


def rejection_text(code: ErrorCode, message: str | None) -> str:
    """Return a broker's error message, or the name of the error code, and the next action."""
    action = _HINTS.get(code) or next_action(code)
    if code == ErrorCode.INVALID_CONFIG:
        action = _setting_action(message or "")
    return _with_action((message or code.name).rstrip("."), action)


def _setting_action(message: str) -> str:
    """Return how to get the valid names or values after a message about an invalid setting."""
    for pattern in _SETTINGS:
        if match := pattern.search(message):
            return f"`kbroker config explain {match[1]}` shows the valid values"
    return (
        "docs/reference/configuration.md lists all settings, and `kbroker config explain WORD` finds "
        "them by a word"
    )


def error_text(error: ClientError) -> str:
    """Return the message of an error with its hint."""
    return _with_action(str(error), error.hint)


def _with_action(text: str, action: str | None) -> str:
    if action is None:
        return text
    return f"{text} {action}" if text.endswith((".", "?")) else f"{text}; {action}"
