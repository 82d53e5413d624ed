"""Settings of topics, brokers and groups: list, set and unset them.

A change is only previewed unless the request says `"dry_run": false`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypedDict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.configs import (
    Operation,
    Setting,
    alter_configs,
    check_changeable,
    describe_configs,
)
from kbroker.client.configs import Resource as ConfigResource
from kbroker.client.errors import ClientError
from kbroker.config import (
    PROPERTIES,
    BrokerConfig,
    ConfigEntry,
    Scope,
    SettingEffect,
    Source,
    Type,
    describe_group,
    describe_topic,
    effect_of,
)
from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.text.documents import Json

from .answers import PARTITION_MAX, ApiError, json_rows_response, path_number
from .api import Api, Permission, read_json_body
from .bodies import is_dry_run, names, plain_settings
from .retention import CLEANUP_POLICY, Deletion, deletions
from .sessions import Viewer

# Maximum number of settings that one request changes.
CHANGES_MAX = 200
# Part of a path that means the cluster-wide default of all brokers.
EVERY_BROKER = "default"
# Names of Kafka's config sources.
SOURCES = {1: "topic", 2: "broker", 3: "all brokers", 4: "static", 5: "default", 8: "group"}
STATIC_SOURCES = (Source.STATIC_BROKER, Source.DEFAULT)


class Target(NamedTuple):
    """The resource whose settings a request is about.

    Attributes:
        kind: Type of the resource in Kafka's protocol.
        name: Name in Kafka's protocol; empty for the cluster-wide default of all brokers.
        scope: Table of the settings.
        permission: Permission to describe the settings.
    """

    kind: ConfigResource
    name: str
    scope: Scope
    permission: Permission


class Origin(NamedTuple):
    """A value and the name of its source; the value is None if it is sensitive or not set."""

    value: str | None
    source: str


class ChangeRow(TypedDict):
    """Change of one setting; sensitive values are None."""

    name: str
    old_value: str | None
    old_source: str
    new_value: str | None
    new_source: str
    unit: str | None
    sensitive: bool


class ListedSetting(NamedTuple):
    """A setting of a resource.

    Attributes:
        setting: The setting as a broker describes it.
        is_own: True if the value is set on the resource itself.
        fallback: Value that applies if the setting is not set on the resource.
    """

    setting: Setting
    is_own: bool
    fallback: Origin

    @property
    def now(self) -> Origin:
        """The effective value."""
        return Origin(self.setting.value, _source(self.setting.source))


FindTarget: TypeAlias = Callable[[Request], Target]
DESCRIBE_CLUSTER_CONFIGS = Permission(AclOperation.DESCRIBE_CONFIGS)
DESCRIBE_TOPIC_CONFIGS = Permission(AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, "topic")
DESCRIBE_GROUP_CONFIGS = Permission(AclOperation.DESCRIBE_CONFIGS, AclResourceType.GROUP, "group")


class Settings:
    """Routes for settings."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        targets: list[tuple[str, FindTarget, Permission]] = [
            ("/topics/{topic}/config", _topic, DESCRIBE_TOPIC_CONFIGS),
            ("/groups/{group:path}/config", _group, DESCRIBE_GROUP_CONFIGS),
            ("/brokers/{broker}/config", _broker, DESCRIBE_CLUSTER_CONFIGS),
        ]
        routes = []
        for path, target, describe in targets:
            alter = describe._replace(operation=AclOperation.ALTER_CONFIGS)
            routes.append(self._api.read_route(path, partial(self._list, target), describe))
            routes.append(self._api.write_route(path, partial(self._change, target), alter))
        return routes

    async def _list(self, find_target: FindTarget, request: Request, viewer: Viewer) -> Response:
        target = find_target(request)
        known = await self._known(target, viewer)
        resource = target.permission.resource(request)
        fields: dict[str, object] = {
            str(target.scope): request.path_params[str(target.scope)],
            "may": self._api.permitted(viewer, resource, AclOperation.ALTER_CONFIGS),
        }
        if target.scope is Scope.BROKER:
            fields["brokers"] = await _broker_ids(viewer)
        nodes = self._api.node.config.nodes
        rows = (_row(target.scope, each, nodes) for each in known.values())
        return await json_rows_response(fields, "configs", rows)

    async def _change(self, find_target: FindTarget, request: Request, viewer: Viewer) -> Response:
        target, body = find_target(request), await read_json_body(request)
        changes = _changes(body, target.scope)
        known = await self._known(target, viewer)
        if target.scope is Scope.BROKER:
            _check_changeable(changes, known)
        dry_run = is_dry_run(body)
        await alter_configs(
            viewer.cluster, target.kind, target.name, changes, validate_only=dry_run
        )
        own = _own_source(target)
        rows = [
            _change_row(name, value, known.get(name), own, _unit(target.scope, name))
            for name, (_, value) in changes.items()
        ]
        fields: dict[str, object] = {"dry_run": dry_run}
        if dry_run and target.scope is Scope.TOPIC:
            fields["deletions"] = await self._deletions(target, viewer, rows, known)
        return await json_rows_response(fields, "changes", rows)

    async def _deletions(
        self,
        target: Target,
        viewer: Viewer,
        rows: Sequence[ChangeRow],
        known: Mapping[str, ListedSetting],
    ) -> list[Deletion]:
        """Return which records of a topic a change would delete."""
        new_values = {row["name"]: row["new_value"] for row in rows}
        policy = new_values.get(CLEANUP_POLICY)
        if policy is None and CLEANUP_POLICY in known:
            policy = known[CLEANUP_POLICY].now.value
        now_ms = self._api.node.clock.log_ms()
        return await deletions(viewer, target.name, new_values, policy or "", now_ms)

    async def _known(self, target: Target, viewer: Viewer) -> dict[str, ListedSetting]:
        """Return the settings of a resource by name. Raises ApiError."""
        name = target.name
        if target.scope is Scope.BROKER:
            brokers = await _broker_ids(viewer)
            name = name or str(self._api.local.id)
            if int(name) not in brokers:
                if int(name) in self._api.node.cluster.node_ids:
                    raise ApiError(404, down_text(name))
                valid = ", ".join(map(str, brokers))
                raise ApiError(404, f"broker {name} does not exist (valid: {valid})")
        found = await describe_configs(
            viewer.cluster, target.kind, [name], synonyms=True, docs=True
        )
        described = sorted(found[name], key=lambda each: each.name)
        config = self._api.node.config
        if target.scope is Scope.BROKER:
            listed = (
                _broker_setting(each, config, is_default=not target.name) for each in described
            )
        else:
            describe = describe_topic if target.scope is Scope.TOPIC else describe_group
            fallbacks = {each.name: each for each in describe({}, config)}
            listed = (_setting(each, fallbacks.get(each.name)) for each in described)
        return {each.setting.name: each for each in listed if each is not None}


def down_text(name: str) -> str:
    """Return why the settings of a node that is down are unknown."""
    return (
        f"node {name} is down: it is not registered with the cluster; start it, or check its log. "
        "Its settings are shown while it runs"
    )


async def _broker_ids(viewer: Viewer) -> list[int]:
    return sorted(each.node_id for each in (await viewer.cluster.metadata([])).brokers)


def _topic(request: Request) -> Target:
    name = request.path_params["topic"]
    return Target(ConfigResource.TOPIC, name, Scope.TOPIC, DESCRIBE_TOPIC_CONFIGS)


def _group(request: Request) -> Target:
    name = request.path_params["group"]
    return Target(ConfigResource.GROUP, name, Scope.GROUP, DESCRIBE_GROUP_CONFIGS)


def _broker(request: Request) -> Target:
    name = ""
    if request.path_params["broker"] != EVERY_BROKER:
        name = str(path_number(request, "broker", PARTITION_MAX))
    return Target(ConfigResource.BROKER, name, Scope.BROKER, DESCRIBE_CLUSTER_CONFIGS)


def _source(number: int) -> str:
    return SOURCES.get(number, "unknown")


def _own_source(target: Target) -> str:
    """Return the name of the source of values that are set on the resource itself."""
    if target.scope is Scope.BROKER:
        return SOURCES[Source.DYNAMIC_BROKER if target.name else Source.DYNAMIC_DEFAULT_BROKER]
    return str(target.scope)


def _setting(found: Setting, fallback: ConfigEntry | None) -> ListedSetting:
    """Return a setting of a topic or group."""
    unset = (
        Origin(fallback.value, _source(fallback.source)) if fallback else Origin(None, "unknown")
    )
    return ListedSetting(found, found.is_own, unset)


def _broker_setting(
    found: Setting, config: BrokerConfig, *, is_default: bool
) -> ListedSetting | None:
    """Return a setting of a broker or of all brokers.

    The cluster-wide default has all dynamic settings. None if it lacks the setting.
    """
    own = Source.DYNAMIC_DEFAULT_BROKER if is_default else Source.DYNAMIC_BROKER
    given = {each.source: each.value for each in reversed(found.synonyms)}
    if is_default and found.read_only and own not in given:
        return None
    sources = STATIC_SOURCES if is_default else (Source.DYNAMIC_DEFAULT_BROKER, *STATIC_SOURCES)
    fallback = next((Origin(given[each], SOURCES[each]) for each in sources if each in given), None)
    if fallback is None:
        known = PROPERTIES[Scope.BROKER].get(found.name)
        default = known.default_for(config.nodes) if known and not known.sensitive else None
        fallback = Origin(default, SOURCES[Source.DEFAULT])
    if is_default:
        number = own if own in given else found.source
        found = found._replace(value=given.get(own), source=number)
    return ListedSetting(found, own in given, fallback)


def _row(scope: Scope, listed: ListedSetting, nodes: int) -> dict[str, object]:
    found, known = listed.setting, PROPERTIES[scope].get(listed.setting.name)
    type_ = known.type if known else next((each for each in Type if each == found.type), None)
    effect = known.effect if known else effect_of(found.name)
    choices = list(known.choices) if known else []
    if type_ is Type.BOOLEAN:
        choices = ["true", "false"]
    return {
        "name": found.name,
        "value": found.value,
        "source": listed.now.source,
        "overridden": listed.is_own,
        "fallback": listed.fallback.value,
        "fallback_source": listed.fallback.source,
        "default": known.default_for(nodes) if known and not known.sensitive else None,
        "type": type_.name.lower() if type_ else None,
        "unit": _unit(scope, found.name),
        "allowed": known.allowed if known else None,
        "choices": choices,
        "sensitive": found.sensitive,
        "read_only": found.read_only,
        "has_effect": effect is None or effect is SettingEffect.APPLIED,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": _source(each.source)}
            for each in found.synonyms
        ],
        "doc": found.doc,
    }


def _changes(body: Mapping[str, Json], scope: Scope) -> dict[str, tuple[Operation, str | None]]:
    """Return the operation and the value of each setting that a request changes. Raises ApiError."""
    changes: dict[str, tuple[Operation, str | None]] = {
        name: (Operation.SET, value)
        for name, value in plain_settings(body, "set", CHANGES_MAX, scope).items()
    }
    unset = names(body, "unset", CHANGES_MAX) if body.get("unset") else []
    for name in unset:
        if name in changes:
            raise ApiError(400, f"{name} is in both set and unset; pass it once")
        changes[name] = (Operation.DELETE, None)
    if not changes:
        raise ApiError(400, "pass settings to change in set (an object) or unset (a list of names)")
    return changes


def _check_changeable(
    changes: Mapping[str, tuple[Operation, str | None]], known: Mapping[str, ListedSetting]
) -> None:
    settings = {name: each.setting for name, each in known.items()}
    for name, (operation, _) in changes.items():
        try:
            check_changeable(name, settings, operation)
        except ClientError as error:
            raise ApiError(400, str(error)) from None


def _unit(scope: Scope, name: str) -> str | None:
    known = PROPERTIES[scope].get(name)
    return (known.unit or None) if known else None


def _change_row(
    name: str, value: str | None, listed: ListedSetting | None, own: str, unit: str | None
) -> ChangeRow:
    """Return the old and the new value of a setting; a value of None unsets the setting."""
    if listed is None:
        old = fallback = Origin(None, "unknown")
        is_sensitive = True
    else:
        old, fallback, is_sensitive = listed.now, listed.fallback, listed.setting.sensitive
    new = fallback if value is None else Origin(None if is_sensitive else value, own)
    return {
        "name": name,
        "old_value": old.value,
        "old_source": old.source,
        "new_value": new.value,
        "new_source": new.source,
        "unit": unit,
        "sensitive": is_sensitive,
    }
