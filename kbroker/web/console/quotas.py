"""Client quotas: list, set and remove."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.quotas import DEFAULT, alter_quotas, describe_quotas
from kbroker.security.acls import AclOperation
from kbroker.security.quotas import (
    ENTITY_TYPES,
    BadQuota,
    Entity,
    QuotaKey,
    check_entity,
    check_value,
    text_of,
)

from .answers import ApiError, json_response, json_rows_response
from .api import ALTER_CLUSTER_CONFIGS, DESCRIBE_CLUSTER_CONFIGS, Api, field, read_json_body
from .sessions import Viewer

# Maximum number of entities per response.
ENTITIES_MAX = 500


class Quotas:
    """Routes for client quotas."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/quotas", self._list, DESCRIBE_CLUSTER_CONFIGS),
            self._api.write_route("/quotas/set", self._set, ALTER_CLUSTER_CONFIGS),
        ]

    async def _list(self, _: Request, viewer: Viewer) -> Response:
        found = await describe_quotas(viewer.cluster)
        fields = {
            "keys": [*QuotaKey],
            "omitted": max(len(found) - ENTITIES_MAX, 0),
            "may_alter": self._api.may_change(viewer, AclOperation.ALTER_CONFIGS),
        }
        return await json_rows_response(
            fields, "quotas", (one.row() for one in found[:ENTITIES_MAX])
        )

    async def _set(self, request: Request, viewer: Viewer) -> Response:
        """Set quotas of an entity; the value null removes a quota."""
        body = await read_json_body(request)
        entity = _entity(body)
        values = _values(body, entity)
        found = await describe_quotas(viewer.cluster, entity, strict=True)
        before = next((one.values for one in found if one.entity == entity), {})
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await alter_quotas(viewer.cluster, entity, values)
        changes = [
            {"key": key, "before": before.get(key), "after": value} for key, value in values.items()
        ]
        return json_response({"dry_run": dry_run, "entity": text_of(entity), "changes": changes})


def _entity(body: Mapping[str, object]) -> Entity:
    """Return the entity in a request body. Raises ApiError."""
    entity: dict[str, str | None] = {}
    for kind in ENTITY_TYPES:
        name = field(body, kind.replace("-", "_"), str, "")
        if name:
            entity[kind] = None if name == DEFAULT else name
    if not entity:
        raise ApiError(400, "name the quota's entity: user, client_id, both of them, or ip")
    try:
        check_entity(entity)
    except BadQuota as error:
        raise ApiError(400, str(error)) from None
    return entity


def _values(body: Mapping[str, object], entity: Entity) -> dict[str, float | None]:
    """Return the quotas in a request body; None for those to remove. Raises ApiError."""
    given = field(body, "values", dict, {})
    if not 0 < len(given) <= len(QuotaKey):
        raise ApiError(400, f"values must have 1 to {len(QuotaKey)} quotas")
    values: dict[str, float | None] = {}
    for key, value in given.items():
        if key not in [*QuotaKey]:
            raise ApiError(400, f"unknown quota {key[:40]!r} (valid: {', '.join(QuotaKey)})")
        if value is None:
            values[key] = None
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 2**63:
            raise ApiError(400, f"{key} must be a number, or null to remove the quota")
        try:
            check_value(entity, key, float(value))
        except BadQuota as error:
            raise ApiError(400, str(error)) from None
        values[key] = float(value)
    return values
