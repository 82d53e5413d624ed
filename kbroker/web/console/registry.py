"""Schemas: subjects, versions, comparisons, registration, compatibility and deletion.

All calls go through the REST API of the registry in this process, which checks the viewer's permissions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.schema_reasons import explain_incompatibility
from kbroker.runtime.threads import run_in_thread
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation
from kbroker.web.logins import FORBIDDEN

from .answers import (
    REST,
    ApiError,
    json_response,
    json_rows_response,
    number,
    path_number,
)
from .api import Api, field, object_list, read_json_body
from .line_diff import compare_lines
from .schemas import Registry
from .sessions import ACL_MISSING, Viewer
from .statuses import NOT_FOUND, UNREACHABLE

# Maximum number of subjects per response, whose newest versions are read.
SUBJECTS_MAX = 100
# Maximum number of versions per response, and per preview of a deletion.
VERSIONS_MAX = 500
REFERENCES_MAX = 1_000
# Maximum number of characters of a schema that is indented in the event loop instead of a thread,
# because json indents at about 1 MB/s.
IN_PLACE_CHARACTERS = 2_000
# Maximum version, offset and limit.
NUMBER_MAX = (1 << 31) - 1
ENABLE = "this process runs no schema registry; start kbroker with --registry-port"
LEVELS = tuple(
    ["NONE"]
    + [name + more for name in ("BACKWARD", "FORWARD", "FULL") for more in ("", "_TRANSITIVE")]
)


class RegistryRoutes:
    """Routes for the schema registry."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._threads = trio.CapacityLimiter(1)

    def routes(self) -> list[Route]:
        """Return the routes; the registry checks permissions itself."""
        read_route, write_route = self._api.read_route, self._api.write_route
        subject = "/schemas/{subject:path}"
        return [
            read_route("/schemas", self._list),
            read_route(f"{subject}/versions", self._versions),
            read_route(f"{subject}/versions/{{version}}", self._version),
            read_route(f"{subject}/compare", self._compare),
            write_route(f"{subject}/register", self._register),
            write_route(f"{subject}/check", self._check),
            write_route(f"{subject}/level", self._set_level),
            write_route(f"{subject}/delete", self._delete),
            write_route("/schema-level", self._set_level),
        ]

    def _caller(self, viewer: Viewer) -> Caller:
        registry = self._api.registry
        if registry is None:
            raise ApiError(NOT_FOUND, ENABLE)
        return Caller(registry, viewer)

    def _rights(self, caller: Caller, subject: str | None) -> dict[str, bool]:
        """Return what the viewer may do with a subject, or with all subjects for None."""
        return {
            name: self._api.may_write and caller.may(operation, subject)
            for name, operation in (
                ("register", AclOperation.WRITE),
                ("delete", AclOperation.DELETE),
                ("alter_level", AclOperation.ALTER_CONFIGS),
            )
        }

    async def _list(self, request: Request, viewer: Viewer) -> Response:
        """Return subjects with their newest versions."""
        if self._api.registry is None:
            return json_response({"enabled": False, "reason": ENABLE, "subjects": []})
        caller = self._caller(viewer)
        search = request.query_params.get("search", "").lower()
        limit = number(request, "limit", 50, 1, SUBJECTS_MAX)
        offset = number(request, "offset", 0, 0, NUMBER_MAX)
        live = await caller.get("/subjects")
        names = live
        if request.query_params.get("deleted") == "1":
            names = await caller.get("/subjects", deleted="true")
        matching = [each for each in names if search in each.lower()]
        existing, rows, duty_cycle = set(live), [], DutyCycle(rest=REST)
        for name in matching[offset : offset + limit]:
            rows.append(await caller.summary(name, is_deleted=name not in existing))
            await duty_cycle.pause()
        fields = {
            "enabled": True,
            "matching": len(matching),
            "level": (await caller.get("/config"))["compatibilityLevel"],
            "levels": LEVELS,
            "may": self._rights(caller, None),
        }
        return await json_rows_response(fields, "subjects", rows)

    async def _versions(self, request: Request, viewer: Viewer) -> Response:
        """Return the versions of a subject, newest first, and its compatibility level."""
        caller, subject = self._caller(viewer), request.path_params["subject"]
        path = subject_path(subject)
        numbers = await caller.get(f"{path}/versions", deleted="true")
        live = set(await caller.versions(subject))
        rows, duty_cycle = [], DutyCycle(rest=REST)
        for version in numbers[: -VERSIONS_MAX - 1 : -1]:
            found = await caller.get(f"{path}/versions/{version}", deleted="true")
            rows.append(
                {
                    "version": version,
                    "id": found["id"],
                    "type": found.get("schemaType", "AVRO"),
                    "references": len(found.get("references", ())),
                    "is_deleted": version not in live,
                }
            )
            await duty_cycle.pause()
        fields = {
            "subject": subject,
            "omitted": len(numbers) - len(rows),
            **await caller.level(subject),
            "levels": LEVELS,
            "may": self._rights(caller, subject),
        }
        return await json_rows_response(fields, "versions", rows)

    async def _version(self, request: Request, viewer: Viewer) -> Response:
        """Return one schema, and the IDs of the schemas that reference it."""
        caller, subject = self._caller(viewer), request.path_params["subject"]
        found = await caller.schema(subject, path_number(request, "version", NUMBER_MAX))
        path = f"{subject_path(subject)}/versions/{found['version']}"
        return json_response(
            {
                "subject": subject,
                "version": found["version"],
                "id": found["id"],
                "type": found.get("schemaType", "AVRO"),
                "schema": found["schema"],
                "text": "\n".join(await self._lines(found)),
                "references": found.get("references", []),
                "referenced_by": (await caller.get(f"{path}/referencedby"))[:REFERENCES_MAX],
            }
        )

    async def _compare(self, request: Request, viewer: Viewer) -> Response:
        """Compare two versions of a subject line by line."""
        caller, subject = self._caller(viewer), request.path_params["subject"]
        before = await caller.schema(subject, number(request, "from", 1, 1, NUMBER_MAX))
        after = await caller.schema(subject, number(request, "to", 1, 1, NUMBER_MAX))
        rows = await compare_lines(await self._lines(before), await self._lines(after))
        fields = {"from": before["version"], "to": after["version"]}
        return await json_rows_response(fields, "lines", rows)

    async def _lines(self, found: Mapping[str, Any]) -> list[str]:
        """Return a schema in lines: JSON is indented, Protobuf stays as it is."""
        text = str(found["schema"])
        if found.get("schemaType") == "PROTOBUF":
            return text.splitlines()
        if len(text) <= IN_PLACE_CHARACTERS:
            return _indented(text)
        return await run_in_thread(
            partial(_indented, text), limiter=self._threads, abandon_on_cancel=True
        )

    async def _register(self, request: Request, viewer: Viewer) -> Response:
        caller, subject = self._caller(viewer), request.path_params["subject"]
        body = await read_json_body(request)
        path = f"{subject_path(subject)}/versions"
        normalize = {"normalize": "true"} if field(body, "normalize", bool, False) else {}
        found = await caller.call("POST", path, normalize, _schema_in(body))
        return json_response({"subject": subject, "id": found["id"], "version": found["version"]})

    async def _check(self, request: Request, viewer: Viewer) -> Response:
        """Check a schema against the versions that the subject's level requires."""
        caller, subject = self._caller(viewer), request.path_params["subject"]
        body = await read_json_body(request)
        level = await caller.level(subject)
        which = "" if level["level"].endswith("_TRANSITIVE") else "/latest"
        path = f"/compatibility{subject_path(subject)}/versions{which}"
        found = await caller.call("POST", path, {"verbose": "true"}, _schema_in(body))
        version, reasons = explain_incompatibility(found["messages"], level["level"])
        return json_response(
            {
                "is_compatible": found["is_compatible"],
                "reasons": reasons,
                "version": version,
                "level": level["level"],
            }
        )

    async def _set_level(self, request: Request, viewer: Viewer) -> Response:
        """Set the compatibility level of a subject or of all; null removes it."""
        caller, subject = self._caller(viewer), request.path_params.get("subject")
        body = await read_json_body(request)
        level = "" if body.get("level") is None else field(body, "level", str)
        if level and level not in LEVELS:
            raise ApiError(400, f"level: unknown value {level[:40]!r} (valid: {', '.join(LEVELS)})")
        path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
        if level:
            await caller.call("PUT", path, {}, {"compatibility": level})
        else:
            await caller.call("DELETE", path, {}, None)
        return json_response({"subject": subject, "level": level or None})

    async def _delete(self, request: Request, viewer: Viewer) -> Response:
        """Delete a version or all versions of a subject, for good if they are deleted already."""
        caller, subject = self._caller(viewer), request.path_params["subject"]
        body = await read_json_body(request)
        version, permanent = field(body, "version", int), field(body, "permanent", bool, False)
        path = subject_path(subject)
        numbers = await caller.get(
            f"{path}/versions", **({"deletedOnly": "true"} if permanent else {})
        )
        chosen = [each for each in numbers if version in (None, each)]
        if not chosen:
            hint = "; delete it without permanent first" if permanent else ""
            raise ApiError(NOT_FOUND, f"subject {subject!r} has no such version to delete{hint}")
        dry_run = field(body, "dry_run", bool, True)
        referring: list[int] = []
        for each in chosen[:VERSIONS_MAX] if dry_run else ():
            referring += await caller.get(f"{path}/versions/{each}/referencedby")
        if not dry_run:
            target = path if version is None else f"{path}/versions/{version}"
            query = {"permanent": str(permanent).lower()}
            deleted = await caller.call("DELETE", target, query, None)
            # Not `chosen`: versions may have been registered or deleted in the meantime.
            chosen = deleted if version is None else [deleted]
        return json_response(
            {
                "dry_run": dry_run,
                "subject": subject,
                "versions": chosen,
                "permanent": permanent,
                "referenced_by": sorted(set(referring))[:REFERENCES_MAX],
            }
        )


class Caller:
    """Calls of the registry on behalf of one viewer."""

    def __init__(self, registry: Registry, viewer: Viewer) -> None:
        self._registry = registry
        self._client = viewer.client

    def may(self, operation: AclOperation, subject: str | None) -> bool:
        """Return True if the viewer has a permission for a subject, or for all subjects (None)."""
        return self._registry.may(self._client, operation, subject)

    async def get(self, path: str, **query: str) -> Any:
        """Return the document at a path. Raises ApiError."""
        return await self.call("GET", path, query, None)

    async def call(self, method: str, path: str, query: Mapping[str, str], body: object) -> Any:
        """Return the response of a call. Raises ApiError."""
        status, found = await self._registry.call(
            self._client, method, path, query=query, body=body
        )
        if status >= 400:
            _raise_error(status, found)
        return found

    async def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject that are not deleted."""
        try:
            found: list[int] = await self.get(f"{subject_path(subject)}/versions")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return []
        return found

    async def schema(self, subject: str, version: int) -> dict[str, Any]:
        """Return a version, even a deleted one. Raises ApiError."""
        path = f"{subject_path(subject)}/versions/{version}"
        found: dict[str, Any] = await self.get(path, deleted="true")
        return found

    async def level(self, subject: str) -> dict[str, Any]:
        """Return the level of a subject, and its own level or None."""
        path = f"/config/{quote(subject, safe='')}"
        effective = await self.get(path, defaultToGlobal="true")
        try:
            own = (await self.get(path)).get("compatibilityLevel")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            own = None
        return {"level": effective["compatibilityLevel"], "own_level": own}

    async def summary(self, subject: str, *, is_deleted: bool) -> dict[str, object]:
        """Return a row for the list of subjects."""
        path = subject_path(subject)
        query = {"deleted": "true"} if is_deleted else {}
        numbers = await self.get(f"{path}/versions", **query)
        newest = await self.get(f"{path}/versions/{numbers[-1]}", **query)
        return {
            "subject": subject,
            "is_deleted": is_deleted,
            "versions": len(numbers),
            "version": newest["version"],
            "id": newest["id"],
            "type": newest.get("schemaType", "AVRO"),
            **await self.level(subject),
        }


def subject_path(subject: str) -> str:
    """Return the path of a subject in the registry's REST API."""
    return f"/subjects/{quote(subject, safe='')}"


def _raise_error(status: int, found: Any) -> NoReturn:
    message = found.get("message") if isinstance(found, dict) else None
    if status == FORBIDDEN:
        message = f"{message}; {ACL_MISSING}"
    raise ApiError(UNREACHABLE if status >= 500 else status, str(message or f"status {status}"))


def _schema_in(body: Mapping[str, object]) -> dict[str, object]:
    """Return the body of a registry request for the schema in a request body. Raises ApiError."""
    schema = field(body, "schema", str)
    if not schema.strip():
        raise ApiError(400, "schema is empty; enter the text of a schema")
    found: dict[str, object] = {
        "schema": schema,
        "schemaType": field(body, "type", str, "AVRO").upper(),
    }
    if body.get("references"):
        found["references"] = object_list(body, "references", REFERENCES_MAX)
    return found


def _indented(text: str) -> list[str]:
    """Return the lines of an indented JSON document, or of the text if it is not JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return text.splitlines()
