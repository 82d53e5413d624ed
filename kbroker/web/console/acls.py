"""ACLs: list, creation, removal after a preview, and explanations of decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.acls import add_acls, deciding_acls, describe_acls, remove_acls
from kbroker.protocol.errors import KafkaError
from kbroker.security.acls import (
    CLUSTER,
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Client,
    Pattern,
    PatternType,
    Resource,
)
from kbroker.security.principals import USER, Principal
from kbroker.security.rights import (
    CONSUMER,
    PRODUCER,
    VALID_OPERATIONS,
    Operations,
    Permission,
    acl_row,
    check_permission,
    cli_name,
)

from .answers import ApiError, api_error_of, json_response, json_rows_response
from .api import ALTER_CLUSTER, DESCRIBE_CLUSTER, Api, field, object_list, read_json_body
from .sessions import Viewer

# Maximum number of ACLs per response.
ACLS_MAX = 1_000
# Maximum number of ACLs or filters per change.
CHANGES_MAX = 100

_RESOURCE_TYPES = {cli_name(each): each for each in VALID_OPERATIONS}
_OPERATIONS = {cli_name(each): each for each in AclOperation if each >= AclOperation.ALL}
_PERMISSIONS = {each.name.lower(): each for each in (AclPermission.ALLOW, AclPermission.DENY)}
_PATTERNS = {each.name.lower(): each for each in (PatternType.LITERAL, PatternType.PREFIXED)}
_MATCH = {"match": PatternType.MATCH}

Choice = TypeVar("Choice")


class AclRoutes:
    """Routes for ACLs."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/acls", self._list, DESCRIBE_CLUSTER),
            self._api.read_route("/acls/explain", self._explain, DESCRIBE_CLUSTER),
            self._api.write_route("/acls/add", self._add, ALTER_CLUSTER),
            self._api.write_route("/acls/remove", self._remove, ALTER_CLUSTER),
        ]

    async def _list(self, request: Request, viewer: Viewer) -> Response:
        """Return the ACLs that match; a resource name selects all ACLs that apply to it."""
        wanted = _filter_of(request.query_params, PatternType.MATCH)
        is_enforced = not viewer.sees_all
        found = await describe_acls(viewer.cluster, [wanted]) if is_enforced else []
        fields = {
            "enforced": is_enforced,
            "omitted": max(len(found) - ACLS_MAX, 0),
            "may_alter": is_enforced and self._api.may_change(viewer, AclOperation.ALTER),
            "operations": {
                cli_name(kind): [*sorted(map(cli_name, valid)), "all"]
                for kind, valid in VALID_OPERATIONS.items()
            },
            "roles": {"producer": _role_row(PRODUCER), "consumer": _role_row(CONSUMER)},
        }
        return await json_rows_response(fields, "acls", (acl_row(one) for one in found[:ACLS_MAX]))

    async def _explain(self, request: Request, viewer: Viewer) -> Response:
        """Explain a decision, as `kbroker security acl explain` does."""
        query = request.query_params
        principal = _principal_in(query)
        kind, _, name = principal.partition(":")
        if name == WILDCARD:
            raise ApiError(400, "principal: name one user, not every user")
        resource = _resource_in(query)
        permission = Permission(_operation_in(query, resource.type), resource)
        if permission.operation is AclOperation.ALL:
            raise ApiError(400, "operation: 'all' is not an operation of a request; choose another")
        client = Client(Principal(kind, name), query.get("host") or WILDCARD)
        acls, described = await deciding_acls(viewer.cluster, [permission])
        checked = check_permission(acls, described.rules, client, permission)
        changes = [{"verb": each.verb, "acl": acl_row(each.acl)} for each in checked.changes]
        return json_response(
            {**checked.row(), "changes": changes, "hidden_settings": described.hidden_settings}
        )

    async def _add(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        new = [*dict.fromkeys(_acl_of(row) for row in object_list(body, "acls", CHANGES_MAX))]
        existing = set(await describe_acls(viewer.cluster, [_exact_filter(each) for each in new]))
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await _add_each(viewer, new, existing)
        rows = [acl_row(each) | {"exists": each in existing} for each in new]
        return json_response({"dry_run": dry_run, "acls": rows})

    async def _remove(self, request: Request, viewer: Viewer) -> Response:
        """Remove the ACLs that match any filter; names match literally, without prefixes and `*`."""
        body = await read_json_body(request)
        rows = object_list(body, "filters", CHANGES_MAX)
        wanted = [_filter_of(row, PatternType.LITERAL) for row in rows]
        if any(each == _filter_of({}, PatternType.LITERAL) for each in wanted):
            raise ApiError(400, "filters: an empty filter matches every ACL; give at least a field")
        dry_run = field(body, "dry_run", bool, True)
        find = describe_acls if dry_run else remove_acls
        found = await find(viewer.cluster, wanted)
        shown = [acl_row(each) for each in found[:ACLS_MAX]]
        return json_response({"dry_run": dry_run, "matching": len(found), "acls": shown})


async def _add_each(viewer: Viewer, new: Sequence[Acl], existing: Collection[Acl]) -> None:
    """Add ACLs: brokers add each one independently of the others.

    Args:
        viewer: The viewer.
        new: ACLs to add.
        existing: Those of them that exist already.

    Raises:
        KafkaError: A broker rejected an ACL, and has added none.
        ApiError: A broker rejected an ACL, but has added others, which `details` lists.
    """
    try:
        await add_acls(viewer.cluster, new)
    except KafkaError as error:
        found = await describe_acls(viewer.cluster, [_exact_filter(each) for each in new])
        added = [each for each in found if each not in existing]
        if not added:
            raise
        failed = api_error_of(error)
        details = {"added": [acl_row(each) for each in added]}
        raise ApiError(failed.status, str(failed), details=details) from None


def _role_row(role: Operations) -> dict[str, list[str]]:
    """Return the operations of a role, by resource type."""
    return {cli_name(kind): [cli_name(each) for each in needed] for kind, needed in role.items()}


def _exact_filter(acl: Acl) -> AclFilter:
    pattern = acl.pattern
    return AclFilter(
        pattern.resource_type,
        pattern.name,
        pattern.type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


def _filter_of(given: Mapping[str, object], pattern: PatternType) -> AclFilter:
    """Return the filter in a query or a request body.

    Args:
        given: Fields of an ACL row; missing and empty fields match everything.
        pattern: Pattern type of a name, unless given.

    Raises:
        ApiError: A field has an unknown value.
    """
    name = field(given, "resource", str, "") or None
    is_open = name is None and not given.get("pattern")
    return AclFilter(
        _choice(given, "resource_type", _RESOURCE_TYPES, AclResourceType.ANY),
        name,
        PatternType.ANY if is_open else _choice(given, "pattern", _PATTERNS | _MATCH, pattern),
        _principal_in(given) if given.get("principal") else None,
        field(given, "host", str, "") or None,
        _choice(given, "operation", _OPERATIONS, AclOperation.ANY),
        _choice(given, "permission", _PERMISSIONS, AclPermission.ANY),
    )


def _acl_of(row: Mapping[str, object]) -> Acl:
    """Return the ACL in a row of a request body. Raises ApiError."""
    resource = _resource_in(row)
    pattern = _choice(row, "pattern", _PATTERNS, PatternType.LITERAL)
    return Acl(
        Pattern(
            resource.type,
            PatternType.LITERAL if resource == CLUSTER else pattern,
            resource.name,
        ),
        _principal_in(row),
        field(row, "host", str, "") or WILDCARD,
        _operation_in(row, resource.type),
        _choice(row, "permission", _PERMISSIONS, AclPermission.ALLOW),
    )


def _resource_in(row: Mapping[str, object]) -> Resource:
    kind = _choice(row, "resource_type", _RESOURCE_TYPES, None)
    if kind is None:
        raise ApiError(400, f"resource_type is missing (valid: {', '.join(_RESOURCE_TYPES)})")
    name = field(row, "resource", str, "")
    if kind is AclResourceType.CLUSTER:
        name = CLUSTER_NAME
    if not name:
        raise ApiError(400, f"resource is empty; name a {cli_name(kind)}, or * for all")
    return Resource(kind, name)


def _operation_in(row: Mapping[str, object], kind: AclResourceType) -> AclOperation:
    operation = _choice(row, "operation", _OPERATIONS, None)
    valid = VALID_OPERATIONS[kind]
    if operation is None or operation not in (*valid, AclOperation.ALL):
        problem = "is missing" if operation is None else f"{cli_name(operation)!r} is invalid"
        names = ", ".join([*sorted(map(cli_name, valid)), "all"])
        raise ApiError(400, f"operation {problem} for a {cli_name(kind)} (valid: {names})")
    return operation


def _principal_in(row: Mapping[str, object]) -> str:
    """Return the principal of a row in the form of ACLs; a name without a type is a user."""
    text = field(row, "principal", str, "")
    principal = text if ":" in text else f"{USER}:{text}"
    if not principal.partition(":")[2]:
        raise ApiError(400, "principal is empty; write User:NAME, or User:* for every user")
    return principal


def _choice(
    row: Mapping[str, object], name: str, choices: Mapping[str, Choice], default: Choice
) -> Choice:
    """Return the value that a field names, or the default if it is empty. Raises ApiError."""
    text = field(row, name, str, "")
    if not text:
        return default
    if text.lower() not in choices:
        raise ApiError(400, f"{name}: unknown value {text[:40]!r} (valid: {', '.join(choices)})")
    return choices[text.lower()]
