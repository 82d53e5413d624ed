"""REST API of Confluent's schema registry: maps HTTP requests to operations of the core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kbroker import __version__
from kbroker.runtime.threads import run_in_thread
from kbroker.security.acls import AclOperation

from .access import Access
from .answers import (
    EXCEPTION_HANDLERS,
    ChunkedResponse,
    error_response,
    json_response,
    route,
    text_response,
    to_json,
)
from .calls import AuthorizedCalls
from .core import lists, registry
from .core.errors import (
    INVALID_SCHEMA,
    NO_SUCH_SCHEMA,
    RegistryError,
    no_such_schema,
)
from .core.formats import referred_texts
from .core.registry import CheckResult, CheckTask, WritePlan
from .core.store import Registered, SchemaStore, Snapshot
from .core.values import PROTOBUF, TYPES, Content
from .core.work import Serialize
from .requests import (
    body_of,
    client_of,
    content_in,
    flag,
    number_in,
    page,
    path_value,
    schema_id_of,
)
from .settings_api import SettingsApi
from .topic import SchemaTopic
from .workers import SchemaWorkers

# Maximum number of rows of a list that is serialized in the event loop instead of a thread.
ROWS_IN_PLACE = 100
# Characters of schemas in one chunk of a long response, and characters added for each row.
CHUNK_CHARACTERS, ROW_CHARACTERS = 64 * 1024, 300

T = TypeVar("T")


class _Stale(Exception):
    """The schemas or settings that a check depends on have changed since it started."""


class SchemaApi:
    """Routes of one node's registry; `threads` limits the long responses created concurrently."""

    def __init__(
        self,
        topic: SchemaTopic,
        threads: trio.CapacityLimiter,
        workers: SchemaWorkers,
        cluster_id: Callable[[], str],
        access: Access,
    ) -> None:
        self._calls = AuthorizedCalls(topic, access)
        self._settings = SettingsApi(self._calls)
        self._access = access
        self._threads = threads
        self._workers = workers
        self._cluster_id = cluster_id

    def app(self) -> Callable[..., Awaitable[None]]:
        """Return the ASGI application, which authenticates its clients."""
        app = self.authenticated_app()

        async def authenticate(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                path = scope["raw_path"].decode("latin-1")
                # Ignore a trailing slash, as Confluent's registry does.
                scope = {**scope, "path": path.removesuffix("/") or "/"}
                try:
                    scope = await self._access.authenticate(scope)
                except RegistryError as error:
                    await error_response(error)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return authenticate

    def authenticated_app(self) -> Starlette:
        """Return the application for requests whose scope has an authenticated client.

        Names in paths may contain any percent-encoded characters.
        """
        app = Starlette(routes=[*self.routes()], exception_handlers=EXCEPTION_HANDLERS)
        app.router.redirect_slashes = False
        return app

    def routes(self) -> Iterable[Route]:
        """Return all routes, each with the permission that it needs."""
        subject = "/subjects/{subject}"
        version = f"{subject}/versions/{{version}}"
        compatibility = f"/compatibility{subject}/versions"
        by_id = "/schemas/ids/{id}"
        yield route("/", GET=self._root)
        yield route("/contexts", GET=self._contexts)
        yield route("/v1/metadata/id", GET=self._metadata_id)
        yield route("/v1/metadata/version", GET=self._metadata_version)
        yield route("/schemas", GET=self._calls.read_call(self._schemas))
        yield route("/schemas/types", GET=self._types)
        yield route(by_id, GET=self._calls.read_call(self._by_id))
        yield route(f"{by_id}/schema", GET=self._calls.read_call(self._text_by_id))
        yield route(f"{by_id}/subjects", GET=self._calls.read_call(self._subjects_of_id))
        yield route(f"{by_id}/versions", GET=self._calls.read_call(self._versions_of_id))
        yield route("/schemas/guids/{guid}", GET=self._calls.read_call(self._by_guid))
        yield route("/schemas/guids/{guid}/ids", GET=self._calls.read_call(self._ids_of_guid))
        yield route("/subjects", GET=self._calls.read_call(self._subjects))
        yield route(
            subject,
            POST=self._calls.with_permission(AclOperation.READ, self._find),
            DELETE=self._calls.with_permission(AclOperation.DELETE, self._delete_subject),
        )
        yield route(
            f"{subject}/metadata",
            GET=self._calls.with_permission(AclOperation.READ, self._with_metadata),
        )
        yield route(
            f"{subject}/versions",
            GET=self._calls.read_call(self._versions),
            POST=self._calls.with_permission(AclOperation.WRITE, self._register),
        )
        yield route(
            version,
            GET=self._calls.read_call(self._version),
            DELETE=self._calls.with_permission(AclOperation.DELETE, self._delete_version),
        )
        yield route(f"{version}/schema", GET=self._calls.read_call(self._text))
        yield route(f"{version}/referencedby", GET=self._calls.read_call(self._referring))
        compatible = self._calls.with_permission(AclOperation.READ, self._compatible)
        yield route(compatibility, POST=compatible)
        yield route(f"{compatibility}/{{version}}", POST=compatible)
        yield from self._settings.routes()

    # -- responses

    async def _check(self, request: Request, task: CheckTask) -> CheckResult:
        return await self._workers.check(task, client_of(request))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(work, limiter=self._threads, abandon_on_cancel=True)

    def _rows(self, found: list[Registered]) -> object:
        if len(found) <= ROWS_IN_PLACE and sum(map(_characters, found)) <= CHUNK_CHARACTERS:
            return [each.document() for each in found]
        return ChunkedResponse(self._json_chunks(found))

    async def _json_chunks(self, found: list[Registered]) -> AsyncGenerator[bytes, None]:
        """Yield a long list as JSON, serialized chunk by chunk outside the event loop."""
        separator, start = b"[", 0
        while start < len(found):
            rows = _next_chunk(found, start)
            start += len(rows)
            chunk = await self._run_in_thread(partial(_rows_json, rows))
            yield separator + chunk
            separator = b","
        yield b"]" if found else b"[]"

    def _formatted(self, request: Request, content: Content, fields: dict[str, object]) -> object:
        """Return a schema response, with the schema in another format if the query requests one."""
        if not _is_serialized(request, content):
            return fields
        return self._add_descriptor(request, content, fields)

    async def _add_descriptor(
        self, request: Request, content: Content, fields: dict[str, object]
    ) -> dict[str, object]:
        return fields | {"schema": await self._serialized(request, content)}

    def _text_of(self, request: Request, content: Content) -> object:
        """Return the text of a schema, in another format if the query requests one."""
        if not _is_serialized(request, content):
            return text_response(content.text)
        return self._descriptor_response(request, content)

    async def _descriptor_response(self, request: Request, content: Content) -> Response:
        return text_response(await self._serialized(request, content))

    async def _serialized(self, request: Request, content: Content) -> str:
        task = Serialize(content, referred_texts(self._store, content))
        return await self._workers.serialized(task, client_of(request))

    @property
    def _store(self) -> SchemaStore:
        return self._calls.store

    # -- information about the registry

    async def _root(self, _: Request) -> object:
        return {}

    async def _contexts(self, _: Request) -> object:
        return ["."]

    async def _types(self, _: Request) -> object:
        return [*TYPES]

    async def _metadata_id(self, _: Request) -> object:
        clusters = {
            "kafka-cluster": self._cluster_id(),
            "schema-registry-cluster": "schema-registry",
        }
        return {"scope": {"path": [], "clusters": clusters}, "id": ""}

    async def _metadata_version(self, _: Request) -> object:
        return {"version": __version__, "commitId": ""}

    # -- schemas by ID

    def _schemas(self, request: Request) -> object:
        return self._list_schemas(request, self._store.snapshot())

    async def _list_schemas(self, request: Request, known: Snapshot) -> object:
        find = partial(
            lists.versions,
            known,
            prefix=request.query_params.get("subjectPrefix", ""),
            deleted=flag(request, "deleted"),
            latest_only=flag(request, "latestOnly"),
        )
        return self._rows(page(request, await self._run_in_thread(find)))

    def _by_id(self, request: Request) -> object:
        schema_id = schema_id_of(request)
        content = self._content(request, schema_id)
        fields = {**content.document(), "guid": content.guid}
        if flag(request, "fetchMaxId"):
            fields["maxId"] = self._store.last_id
        return self._formatted(request, content, fields)

    def _content(self, request: Request, schema_id: int) -> Content:
        return self._registered_with_id(request, schema_id, deleted=True)[0].content

    def _registered_with_id(
        self, request: Request, schema_id: int, *, deleted: bool
    ) -> list[Registered]:
        """Return the versions with an ID; fail if the query names a subject without that ID."""
        found = self._store.versions_of_id(schema_id, deleted=True)
        subject = request.query_params.get("subject")
        if subject and all(each.subject != subject for each in found):
            raise no_such_schema(schema_id)
        return [each for each in found if deleted or not each.is_deleted]

    def _text_by_id(self, request: Request) -> object:
        return self._text_of(request, self._content(request, schema_id_of(request)))

    def _subjects_of_id(self, request: Request) -> object:
        found = self._registered_with_id(
            request, schema_id_of(request), deleted=flag(request, "deleted")
        )
        return page(request, [*dict.fromkeys(each.subject for each in found)])

    def _versions_of_id(self, request: Request) -> object:
        found = self._registered_with_id(
            request, schema_id_of(request), deleted=flag(request, "deleted")
        )
        rows = [{"subject": each.subject, "version": each.version} for each in found]
        return page(request, rows)

    def _by_guid(self, request: Request) -> object:
        content = self._store.content_of_guid(path_value(request, "guid"))
        return self._formatted(request, content, {**content.document(), "guid": content.guid})

    def _ids_of_guid(self, request: Request) -> object:
        found = self._store.ids_of_guid(path_value(request, "guid"))
        return [{"context": ".", "id": each} for each in found]

    # -- subjects and versions

    def _subjects(self, request: Request) -> object:
        return self._list_subjects(request, self._store.snapshot())

    async def _list_subjects(self, request: Request, known: Snapshot) -> Response:
        find = partial(
            lists.subjects,
            known,
            prefix=request.query_params.get("subjectPrefix", ""),
            deleted=flag(request, "deleted"),
            deleted_only=flag(request, "deletedOnly"),
        )
        return json_response(await self._run_in_thread(lambda: to_json(page(request, find()))))

    def _versions(self, request: Request) -> object:
        subject = path_value(request, "subject")
        only = flag(request, "deletedOnly")
        found = self._store.existing_versions(subject, deleted=only or flag(request, "deleted"))
        return page(request, [each.version for each in found if each.is_deleted or not only])

    def _requested_version(self, request: Request) -> Registered:
        version = registry.version_of(path_value(request, "version"))
        deleted = flag(request, "deleted")
        return self._store.version(path_value(request, "subject"), version, deleted=deleted)

    def _version(self, request: Request) -> object:
        found = self._requested_version(request)
        return self._formatted(request, found.content, found.document())

    def _text(self, request: Request) -> object:
        return self._text_of(request, self._requested_version(request).content)

    def _referring(self, request: Request) -> object:
        version = registry.version_of(path_value(request, "version"))
        found = self._store.version(path_value(request, "subject"), version, deleted=True)
        referring = self._store.referring(*found.subject_version, deleted=flag(request, "deleted"))
        return page(request, sorted({each.id for each in referring}))

    async def _with_metadata(self, request: Request) -> object:
        """Return the latest version whose metadata contains the requested properties."""
        names, values = (request.query_params.getlist(each) for each in ("key", "value"))
        requested = dict(zip(names, values, strict=False))
        versions = partial(
            self._store.existing_versions,
            path_value(request, "subject"),
            deleted=flag(request, "deleted"),
        )
        known = await self._calls.read(versions)
        found = await self._run_in_thread(partial(lists.with_metadata, known, requested))
        if found is None:  # the version may have been registered at another node
            await self._calls.catch_up()
            known = versions()
            found = await self._run_in_thread(partial(lists.with_metadata, known, requested))
        if found is None:
            raise RegistryError(NO_SUCH_SCHEMA, "Schema not found")
        return found

    async def _find(self, request: Request) -> object:
        subject, content = path_value(request, "subject"), content_in(await body_of(request))
        normalize, deleted = flag(request, "normalize"), flag(request, "deleted")

        def prepare() -> CheckTask:
            task = registry.prepare_check(self._store, subject, content, normalize=normalize)
            return task._replace(earlier=())

        checked = await self._check(request, await self._calls.read(prepare))
        found = await self._calls.read(
            lambda: registry.find(self._store, subject, checked.content, deleted=deleted)
        )
        return self._formatted(request, found.content, found.document())

    async def _register(self, request: Request) -> object:
        subject, body = path_value(request, "subject"), await body_of(request)
        content, normalize = content_in(body), flag(request, "normalize")
        schema_id, version = number_in(body, "id"), number_in(body, "version")
        registry.check_subject(subject)
        await self._calls.ensure_read()
        while True:
            prepare = partial(
                registry.prepare_check,
                subject=subject,
                content=content,
                normalize=normalize,
                registering=True,
            )
            task = prepare(self._store)
            checked = await self._check(request, task)
            plan = partial(_plan_registration, prepare, task, subject, checked, schema_id, version)
            try:
                registered = await self._calls.write(request, plan)
            except _Stale:
                continue
            return {
                "id": registered.id,
                "version": registered.version,
                "guid": registered.content.guid,
            }

    async def _delete_subject(self, request: Request) -> object:
        subject, permanent = path_value(request, "subject"), flag(request, "permanent")
        return await self._calls.write(
            request,
            lambda store: registry.plan_subject_deletion(store, subject, permanent=permanent),
        )

    async def _delete_version(self, request: Request) -> object:
        subject, permanent = path_value(request, "subject"), flag(request, "permanent")
        version = registry.version_of(path_value(request, "version"))
        return await self._calls.write(
            request,
            lambda store: registry.plan_version_deletion(
                store, subject, version, permanent=permanent
            ),
        )

    async def _compatible(self, request: Request) -> object:
        subject, content = path_value(request, "subject"), content_in(await body_of(request))
        version_text = request.path_params.get("version")
        version = None if version_text is None else registry.version_of(unquote(version_text))
        normalize = flag(request, "normalize")
        task = await self._calls.read(
            lambda: registry.prepare_check(
                self._store,
                subject,
                content,
                normalize=normalize,
                with_version=version,
            )
        )
        is_verbose = flag(request, "verbose")
        try:
            reasons = (await self._check(request, task)).reasons
        except RegistryError as error:
            if not is_verbose or error.code != INVALID_SCHEMA:
                raise
            reasons = [error.message]
        fields: dict[str, object] = {"is_compatible": not reasons}
        return fields | {"messages": [*reasons]} if is_verbose else fields


def _plan_registration(
    prepare: Callable[[SchemaStore], CheckTask],
    task: CheckTask,
    subject: str,
    checked: CheckResult,
    schema_id: int,
    version: int,
    store: SchemaStore,
) -> WritePlan[Registered]:
    """Return the plan of a registration. Raises _Stale if its check is outdated."""
    if prepare(store) != task:
        raise _Stale
    return registry.plan_registration(store, subject, checked, schema_id=schema_id, version=version)


def _next_chunk(found: list[Registered], start: int) -> list[Registered]:
    """Return the rows of a list from index `start`, up to the size of a chunk."""
    rows: list[Registered] = []
    size = 0
    while start < len(found) and size < CHUNK_CHARACTERS:
        rows.append(found[start])
        size += _characters(found[start]) + ROW_CHARACTERS
        start += 1
    return rows


def _characters(row: Registered) -> int:
    """Return the number of characters of a schema, its metadata and its rules."""
    content = row.content
    return sum(len(each or "") for each in (content.text, content.metadata, content.rule_set))


def _rows_json(rows: list[Registered]) -> bytes:
    """Return rows as JSON, without the brackets of the list."""
    return b",".join(to_json(each.document()) for each in rows)


def _is_serialized(request: Request, content: Content) -> bool:
    """Return True if the query requests a descriptor and the schema is a Protobuf file."""
    return request.query_params.get("format") == "serialized" and content.type == PROTOBUF
