"""Which function serves which API in which versions. What ApiVersions tells is derived from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import TypeVar, cast

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .context import Api, Handler

Function = TypeVar("Function", bound=Callable[..., object])


HANDLER_MODULES = (
    "acls",
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "delegation_tokens",
    "fetch",
    "groups",
    "list_offsets",
    "log_dirs",
    "metadata",
    "offsets",
    "produce",
    "quorum",
    "quotas",
    "scram_users",
    "security",
    "share_acknowledge",
    "share_fetch",
    "share_groups",
    "share_offsets",
    "share_state",
    "streams_groups",
    "telemetry",
    "topics",
    "transaction_views",
    "transactions",
)
"""Modules of kbroker.handlers; they are named like the messages that they answer."""

ONLY_LOOK = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,  # the topic that it may create is asked for again by who needs it
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.LIST_GROUPS,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""What nobody does for the sake of its effect: it need not be done for a client that has gone."""


def handles(key: ApiKey, *, versions: str) -> Callable[[Function], Function]:
    """Mark a function as the handler of `key` in the versions "first-last"."""
    first, _, last = versions.partition("-")
    served = range(int(first), int(last or first) + 1)

    def mark(function: Function) -> Function:
        function.__served__ = (key, served)  # type: ignore[attr-defined]
        return function

    return mark


@cache
def load_apis() -> Mapping[int, Api]:
    """Import the handlers and return what they serve, by API key; the same for all who ask."""
    modules = (importlib.import_module(f"kbroker.handlers.{name}") for name in HANDLER_MODULES)
    return MappingProxyType(collect_apis(modules))


def collect_apis(modules: Iterable[ModuleType]) -> dict[int, Api]:
    """Return the APIs that the modules' functions serve. Raises ValueError on a key twice."""
    apis: dict[int, Api] = {}
    for module in modules:
        for function in vars(module).values():
            served = getattr(function, "__served__", None)
            if served is None or function.__module__ != module.__name__:
                continue
            key, versions = served
            if key in apis:
                raise ValueError(f"{key.name} has two handlers")
            request_class = messages.request_class(key)
            # Each handler takes the request class of its own key; test_registry.py checks that.
            handler = cast(Handler, function)
            apis[key] = Api(key, versions, handler, request_class, key in ONLY_LOOK)
    return dict(sorted(apis.items()))
