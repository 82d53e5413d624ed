"""The calls of Confluent's REST API, from a request to what is asked of the core, and back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import unquote

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kbroker import __version__
from kbroker.runtime.threads import run_in_thread
from kbroker.security.acls import AclOperation

from .access import Access
from .core import registry
from .core.errors import (
    BAD_REQUEST,
    CONTENT_TYPE,
    INVALID_SCHEMA,
    NO_SUCH_SCHEMA,
    RegistryError,
    invalid_schema,
    no_such_schema,
)
from .core.formats import referred_texts
from .core.registry import Checked, Compared, Planned
from .core.store import ID_MAX, Registered, SchemaStore
from .core.values import PROTOBUF, TYPES, Content, Level, Mode, content_of
from .core.work import Serialize
from .topic import Plan, SchemaTopic
from .workers import SchemaWorkers

NOT_FOUND, FAILED = 404, 500
COUNT_DIGITS_MAX = 10
ROWS_IN_PLACE = 100
"""Longer answers are made in a thread."""
SLICE_BYTES = 64 * 1024
PIECE_CHARACTERS, ROW_CHARACTERS = 64 * 1024, 300
"""Characters of schemas in one piece of a long response, and characters added for each row."""

Call = Callable[[Request], Awaitable[object]]
T = TypeVar("T")


class _Stale(Exception):
    """What a check was made with has changed meanwhile."""


class SchemaApi:
    """Serves what one node knows. `threads` limits how many long responses are created concurrently."""

    def __init__(
        self,
        topic: SchemaTopic,
        threads: trio.CapacityLimiter,
        workers: SchemaWorkers,
        cluster_id: Callable[[], str],
        access: Access,
    ) -> None:
        self._topic = topic
        self._access = access
        self._threads = threads
        self._workers = workers
        self._cluster_id = cluster_id
        self._is_read = False

    def app(self) -> Callable[..., Awaitable[None]]:
        """The application. Names in paths may have any characters, quoted."""
        app = Starlette(routes=[*self.routes()], exception_handlers=_REFUSALS)
        app.router.redirect_slashes = False

        async def let_in(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                path = scope["raw_path"].decode("latin-1")
                # As Confluent's registry: a slash at the end makes no other path.
                scope = {**scope, "path": path.removesuffix("/") or "/"}
                try:
                    scope = await self._access.let_in(scope)
                except RegistryError as error:
                    await _refusal(error)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return let_in

    def routes(self) -> Iterable[Route]:
        """All that is served, each call with the right that it takes."""
        subject = "/subjects/{subject}"
        version = f"{subject}/versions/{{version}}"
        compatibility = f"/compatibility{subject}/versions"
        by_id = "/schemas/ids/{id}"
        yield _route("/", GET=self._root)
        yield _route("/contexts", GET=self._contexts)
        yield _route("/v1/metadata/id", GET=self._metadata_id)
        yield _route("/v1/metadata/version", GET=self._metadata_version)
        yield _route("/schemas", GET=self._look(self._schemas))
        yield _route("/schemas/types", GET=self._types)
        yield _route(by_id, GET=self._look(self._by_id))
        yield _route(f"{by_id}/schema", GET=self._look(self._text_by_id))
        yield _route(f"{by_id}/subjects", GET=self._look(self._subjects_of_id))
        yield _route(f"{by_id}/versions", GET=self._look(self._versions_of_id))
        yield _route("/schemas/guids/{guid}", GET=self._look(self._by_guid))
        yield _route("/schemas/guids/{guid}/ids", GET=self._look(self._ids_of_guid))
        yield _route("/subjects", GET=self._look(self._subjects))
        yield _route(
            subject,
            POST=self._may(AclOperation.READ, self._find),
            DELETE=self._may(AclOperation.DELETE, self._delete_subject),
        )
        yield _route(f"{subject}/metadata", GET=self._look(self._with_metadata))
        yield _route(
            f"{subject}/versions",
            GET=self._look(self._versions),
            POST=self._may(AclOperation.WRITE, self._register),
        )
        yield _route(
            version,
            GET=self._look(self._version),
            DELETE=self._may(AclOperation.DELETE, self._delete_version),
        )
        yield _route(f"{version}/schema", GET=self._look(self._text))
        yield _route(f"{version}/referencedby", GET=self._look(self._referring))
        compatible = self._may(AclOperation.READ, self._compatible)
        yield _route(compatibility, POST=compatible)
        yield _route(f"{compatibility}/{{version}}", POST=compatible)
        for path in ("/config", "/config/{subject}"):
            yield _route(
                path,
                GET=self._look(self._config),
                PUT=self._may(AclOperation.ALTER_CONFIGS, self._put_config),
                DELETE=self._may(AclOperation.ALTER_CONFIGS, self._delete_config),
            )
        for path in ("/mode", "/mode/{subject}"):
            yield _route(
                path,
                GET=self._look(self._mode),
                PUT=self._may(AclOperation.ALTER_CONFIGS, self._put_mode),
                DELETE=self._may(AclOperation.ALTER_CONFIGS, self._delete_mode),
            )

    # -- how requests are answered

    def _may(self, operation: AclOperation, call: Call) -> Call:
        """A request of who may do something with the subject that it names, or with all of them."""

        async def allowed(request: Request) -> object:
            self._access.check(request, operation, _subject(request))
            return await call(request)

        return allowed

    def _look(self, call: Callable[[Request], object]) -> Call:
        """A request that changes nothing: what is not known here may have come elsewhere just now."""

        async def looked(request: Request) -> object:
            return await self._looking(partial(call, request))

        return self._may(AclOperation.READ, looked)

    async def _looking(self, call: Callable[[], T]) -> T:
        await self._first_read()
        try:
            return call()
        except RegistryError as error:
            if error.status != NOT_FOUND:
                raise
        await self._topic.catch_up()
        return call()

    async def _first_read(self) -> None:
        if not self._is_read:
            await self._topic.catch_up()
            self._is_read = True

    async def _write(self, plan: Plan[T]) -> T:
        """Write, unless there is nothing to be written. Raises RegistryError."""
        await self._first_read()
        try:
            planned = plan(self._topic.store)
            if not planned.entries:
                return planned.answer
        except RegistryError:
            pass  # what is newest decides
        return await self._topic.write(plan)

    async def _checked(self, request: Request, compared: Compared) -> Checked:
        return await self._workers.check(compared, _client(request))

    async def _in_thread(self, deed: Callable[[], T]) -> T:
        return await run_in_thread(deed, limiter=self._threads, abandon_on_cancel=True)

    def _rows(self, found: list[Registered]) -> object:
        size = sum(len(each.content.text) for each in found)
        if len(found) <= ROWS_IN_PLACE and size <= PIECE_CHARACTERS:
            return [each.document() for each in found]
        return _InPieces(self._pieces(found))

    async def _pieces(self, found: list[Registered]) -> AsyncIterator[bytes]:
        """Return a long list as JSON, serialized piece by piece outside the event loop."""
        before, at = b"[", 0
        while at < len(found):
            rows = _piece(found, at)
            at += len(rows)
            made = await self._in_thread(partial(_rows_json, rows))
            yield before + made
            before = b","
        yield b"]" if found else b"[]"

    def _formatted(self, request: Request, content: Content, told: dict[str, object]) -> object:
        """An answer about a schema, with that in another form where that is asked for."""
        if not _is_serialized(request, content):
            return told
        return self._with_descriptor(request, content, told)

    async def _with_descriptor(
        self, request: Request, content: Content, told: dict[str, object]
    ) -> dict[str, object]:
        return told | {"schema": await self._serialized(request, content)}

    def _text_of(self, request: Request, content: Content) -> object:
        """The same of the text alone."""
        if not _is_serialized(request, content):
            return _text_answer(content.text)
        return self._raw(request, content)

    async def _raw(self, request: Request, content: Content) -> Response:
        return _text_answer(await self._serialized(request, content))

    async def _serialized(self, request: Request, content: Content) -> str:
        task = Serialize(content, referred_texts(self._store, content))
        return await self._workers.serialized(task, _client(request))

    @property
    def _store(self) -> SchemaStore:
        return self._topic.store

    # -- the registry itself

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

    # -- schemas by id

    def _schemas(self, request: Request) -> object:
        prefix = request.query_params.get("subjectPrefix", "")
        found = [
            each
            for each in self._store.everything(deleted=_flag(request, "deleted"))
            if each.subject.startswith(prefix)
        ]
        if _flag(request, "latestOnly"):
            found = [*{each.subject: each for each in found}.values()]
        return self._rows(_page(request, found))

    def _by_id(self, request: Request) -> object:
        schema_id = _id(request)
        content = self._content(request, schema_id)
        told = {**content.document(), "guid": content.guid}
        if _flag(request, "fetchMaxId"):
            told["maxId"] = self._store.last_id
        return self._formatted(request, content, told)

    def _content(self, request: Request, schema_id: int) -> Content:
        return self._places(request, schema_id, deleted=True)[0].content

    def _places(self, request: Request, schema_id: int, *, deleted: bool) -> list[Registered]:
        """The versions with an id, if the subject that is asked for, if any, has one of them."""
        found = self._store.places_of(schema_id, deleted=True)
        subject = request.query_params.get("subject")
        if subject and all(each.subject != subject for each in found):
            raise no_such_schema(schema_id)
        return [each for each in found if deleted or not each.is_deleted]

    def _text_by_id(self, request: Request) -> object:
        return self._text_of(request, self._content(request, _id(request)))

    def _subjects_of_id(self, request: Request) -> object:
        found = self._places(request, _id(request), deleted=_flag(request, "deleted"))
        return _page(request, [*dict.fromkeys(each.subject for each in found)])

    def _versions_of_id(self, request: Request) -> object:
        found = self._places(request, _id(request), deleted=_flag(request, "deleted"))
        rows = [{"subject": each.subject, "version": each.version} for each in found]
        return _page(request, rows)

    def _by_guid(self, request: Request) -> object:
        content = self._store.content_of_guid(_path(request, "guid"))
        return self._formatted(request, content, {**content.document(), "guid": content.guid})

    def _ids_of_guid(self, request: Request) -> object:
        found = self._store.ids_of_guid(_path(request, "guid"))
        return [{"context": ".", "id": each} for each in found]

    # -- subjects and versions

    def _subjects(self, request: Request) -> object:
        prefix = request.query_params.get("subjectPrefix", "")
        found = self._store.subjects(
            deleted=_flag(request, "deleted"), deleted_only=_flag(request, "deletedOnly")
        )
        return _page(request, [each for each in found if each.startswith(prefix)])

    def _versions(self, request: Request) -> object:
        subject = _path(request, "subject")
        only = _flag(request, "deletedOnly")
        found = self._store.some_versions(subject, deleted=only or _flag(request, "deleted"))
        return _page(request, [each.version for each in found if each.is_deleted or not only])

    def _one(self, request: Request) -> Registered:
        version = registry.version_of(_path(request, "version"))
        deleted = _flag(request, "deleted")
        return self._store.version(_path(request, "subject"), version, deleted=deleted)

    def _version(self, request: Request) -> object:
        found = self._one(request)
        return self._formatted(request, found.content, found.document())

    def _text(self, request: Request) -> object:
        return self._text_of(request, self._one(request).content)

    def _referring(self, request: Request) -> object:
        version = registry.version_of(_path(request, "version"))
        found = self._store.version(_path(request, "subject"), version, deleted=True)
        referring = self._store.referring(*found.place, deleted=_flag(request, "deleted"))
        return _page(request, sorted({each.id for each in referring}))

    def _with_metadata(self, request: Request) -> object:
        """The latest version whose metadata have these properties."""
        names, values = (request.query_params.getlist(each) for each in ("key", "value"))
        wanted = dict(zip(names, values, strict=False))
        subject = _path(request, "subject")
        for each in reversed(self._store.some_versions(subject, deleted=_flag(request, "deleted"))):
            properties = json.loads(each.content.metadata or "{}").get("properties")
            if not isinstance(properties, dict):
                properties = {}
            if wanted.items() <= properties.items():
                return each.document()
        raise RegistryError(NO_SUCH_SCHEMA, "Schema not found")

    async def _find(self, request: Request) -> object:
        subject, content = _path(request, "subject"), _content_of(await _body(request))
        normalize, deleted = _flag(request, "normalize"), _flag(request, "deleted")

        def compared() -> Compared:
            made = registry.to_compare(self._store, subject, content, normalize=normalize)
            return made._replace(earlier=())

        checked = await self._checked(request, await self._looking(compared))
        found = await self._looking(
            lambda: registry.find(self._store, subject, checked.content, deleted=deleted)
        )
        return self._formatted(request, found.content, found.document())

    async def _register(self, request: Request) -> object:
        subject, body = _path(request, "subject"), await _body(request)
        content, normalize = _content_of(body), _flag(request, "normalize")
        schema_id, version = _number(body, "id"), _number(body, "version")
        registry.check_subject(subject)
        await self._first_read()
        while True:
            compare = partial(
                registry.to_compare, subject=subject, content=content, normalize=normalize
            )
            compared = compare(self._store)
            checked = await self._checked(request, compared)
            plan = partial(_registration, compare, compared, subject, checked, schema_id, version)
            try:
                made = await self._write(plan)
            except _Stale:
                continue
            return {"id": made.id, "version": made.version, "guid": made.content.guid}

    async def _delete_subject(self, request: Request) -> object:
        subject, permanent = _path(request, "subject"), _flag(request, "permanent")
        return await self._write(
            lambda store: registry.plan_subject_deletion(store, subject, permanent=permanent)
        )

    async def _delete_version(self, request: Request) -> object:
        subject, permanent = _path(request, "subject"), _flag(request, "permanent")
        version = registry.version_of(_path(request, "version"))
        return await self._write(
            lambda store: registry.plan_version_deletion(
                store, subject, version, permanent=permanent
            )
        )

    async def _compatible(self, request: Request) -> object:
        subject, content = _path(request, "subject"), _content_of(await _body(request))
        named = request.path_params.get("version")
        version = None if named is None else registry.version_of(unquote(named))
        normalize = _flag(request, "normalize")
        compared = await self._looking(
            lambda: registry.to_compare(
                self._store,
                subject,
                content,
                normalize=normalize,
                with_version=version,
                all_versions=version is None,
            )
        )
        is_verbose = _flag(request, "verbose")
        try:
            reasons = (await self._checked(request, compared)).reasons
        except RegistryError as error:
            if not is_verbose or error.code != INVALID_SCHEMA:
                raise
            reasons = [error.message]
        told: dict[str, object] = {"is_compatible": not reasons}
        return told | {"messages": [*reasons]} if is_verbose else told

    # -- settings

    def _config(self, request: Request) -> object:
        subject = _subject(request)
        own = self._store.config(subject)
        if subject is not None and own is None:
            if not _flag(request, "defaultToGlobal"):
                raise registry.no_own_level(subject)
            own = self._store.config(None)
        return {
            "compatibilityLevel": Level.BACKWARD,
            **{key: value for key, value in (own or {}).items() if key != "subject"},
        }

    async def _put_config(self, request: Request) -> object:
        subject, body = _subject(request), await _body(request)
        return await self._write(lambda store: registry.plan_config(store, subject, body))

    async def _delete_config(self, request: Request) -> object:
        subject = _subject(request)
        told = await self._write(lambda store: registry.plan_config_deletion(store, subject))
        return {key: value for key, value in told.items() if key != "subject"}

    def _mode(self, request: Request) -> object:
        subject = _subject(request)
        own = self._store.own_mode(subject)
        if subject is not None and own is None:
            if not _flag(request, "defaultToGlobal"):
                raise registry.no_own_mode(subject)
            own = self._store.own_mode(None)
        return {"mode": own or Mode.READWRITE}

    async def _put_mode(self, request: Request) -> object:
        subject, body, force = _subject(request), await _body(request), _flag(request, "force")
        mode = body.get("mode")
        return await self._write(
            lambda store: registry.plan_mode(store, subject, mode, force=force)
        )

    async def _delete_mode(self, request: Request) -> object:
        subject = _subject(request)
        return await self._write(lambda store: registry.plan_mode_deletion(store, subject))


def _registration(
    compare: Callable[[SchemaStore], Compared],
    compared: Compared,
    subject: str,
    checked: Checked,
    schema_id: int,
    version: int,
    store: SchemaStore,
) -> Planned[Registered]:
    """The plan of a registration whose check still holds. Raises _Stale where it does not."""
    if compare(store) != compared:
        raise _Stale
    return registry.plan_registration(store, subject, checked, schema_id=schema_id, version=version)


# -- requests


def _route(path: str, **calls: Call) -> Route:
    async def served(request: Request) -> Response:
        call = calls.get("GET" if request.method == "HEAD" else request.method)
        assert call is not None  # Starlette refuses other methods
        made = await call(request)
        if isinstance(made, Awaitable):
            made = await made
        return made if isinstance(made, Response) else _answer(_json(made))

    return Route(path, served, methods=[*calls])


def _piece(found: list[Registered], at: int) -> list[Registered]:
    """Return the next rows of a list, up to a size."""
    rows: list[Registered] = []
    size = 0
    while at < len(found) and size < PIECE_CHARACTERS:
        rows.append(found[at])
        size += len(found[at].content.text) + ROW_CHARACTERS
        at += 1
    return rows


def _rows_json(rows: list[Registered]) -> bytes:
    """Return rows as JSON, without the brackets of the list."""
    return b",".join(_json(each.document()) for each in rows)


def _path(request: Request, name: str) -> str:
    return unquote(request.path_params[name])


def _subject(request: Request) -> str | None:
    return _path(request, "subject") if "subject" in request.path_params else None


def _id(request: Request) -> int:
    text = _path(request, "id")
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > ID_MAX:
        raise RegistryError(NOT_FOUND, "HTTP 404 Not Found")  # as for a path that is not served
    return int(text)


def _client(request: Request) -> str:
    """Return the client address of a request, for the round-robin order of tasks."""
    return request.client.host if request.client else ""


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _page(request: Request, rows: list[T]) -> list[T]:
    first, count = (_count(request, each) for each in ("offset", "limit"))
    rows = rows[first:]
    return rows[:count] if count else rows


def _count(request: Request, name: str) -> int:
    """Return a number of rows in the query; 0 if it is missing or not a number."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= COUNT_DIGITS_MAX
    return int(text) if is_number else 0


async def _body(request: Request) -> Mapping[str, object]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise RegistryError(BAD_REQUEST, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RegistryError(BAD_REQUEST, "the body is no object")
    return body


def _content_of(body: Mapping[str, object]) -> Content:
    try:
        return content_of(body)
    except ValueError as error:
        raise invalid_schema(str(error)) from None


def _number(body: Mapping[str, object], name: str) -> int:
    value = body.get(name)
    if value is None:
        return -1
    if type(value) is not int or not -1 <= value <= ID_MAX:
        raise RegistryError(BAD_REQUEST, f"{name} is a number")
    return value


# -- answers


def _is_serialized(request: Request, content: Content) -> bool:
    """Whether a descriptor is asked for, which schemas of Protobuf have."""
    return request.query_params.get("format") == "serialized" and content.type == PROTOBUF


def _json(told: object) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def _answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type=CONTENT_TYPE)


class _InPieces(Response):
    """A response that is created while it is sent. StreamingResponse of Starlette needs anyio."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [row for row in self.raw_headers if row[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async for piece in self._pieces:
            # In slices, because the transport copies what a slow client has not read yet.
            for at in range(0, len(piece), SLICE_BYTES):
                body = piece[at : at + SLICE_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _text_answer(text: str) -> Response:
    return Response(text.encode("utf-8", "replace"), media_type=CONTENT_TYPE)


def error_body(code: int, message: str) -> bytes:
    """Return the JSON of an error as Confluent's clients read it."""
    return _json({"error_code": code, "message": message})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    return _refusal(error)


def _refusal(error: RegistryError) -> Response:
    answer = _answer(error_body(error.code, error.message), error.status)
    answer.headers.update(error.headers or {})
    return answer


async def _unknown(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", FAILED)
    return _answer(error_body(status, f"HTTP {status} {HTTPStatus(status).phrase}"), status)


_REFUSALS: Mapping[object, Callable[[Request, Exception], Awaitable[Response]]] = {
    RegistryError: _refused,
    HTTPException: _unknown,
    FAILED: _unknown,
}
