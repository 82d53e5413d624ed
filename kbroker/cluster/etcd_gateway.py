"""Client of etcd's JSON gateway.

The gateway uses proto3 JSON: 64-bit integers are strings, keys and values are base64, and fields with
default values are omitted. Source: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
"""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import trio

from kbroker.runtime.http_client import (
    HTTP_OK,
    ConnectionFailed,
    HttpConnection,
    HttpError,
    NoResponse,
    connect,
)
from kbroker.storage.errors import StorageError
from kbroker.text.lines import Lines

from .store import OutcomeUnknown, Unreachable

Message = dict[str, Any]


class Status(IntEnum):
    """The gRPC status codes with which etcd rejects a request without applying it."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNAUTHENTICATED = 16


# Status codes of requests that etcd certainly did not apply; after other errors it may have.
REFUSALS = frozenset(Status)


class Refusal(StorageError):
    """etcd rejected a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"etcd rejected the request: {message}")
        self.status = status


class Login(NamedTuple):
    """A user of etcd."""

    user: str
    password: str


def to_base64(data: bytes) -> str:
    return b64encode(data).decode()


class Gateway:
    """A client of one etcd cluster. Call `aclose` at the end.

    Args:
        endpoints: URLs such as http://host:2379. An endpoint is used until it fails.
        timeout_seconds: Maximum time for a response.
        login: User of etcd, if etcd requires authentication.
        trusted: TLS context for https endpoints.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_seconds: float = 2.0,
        login: Login | None = None,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = [urlsplit(each.rstrip("/")) for each in endpoints]
        # Index of the current endpoint.
        self._current = 0
        self._timeout_seconds = timeout_seconds
        self._login = login
        self._trusted = trusted
        self._token: str | None = None
        # Idle connections to the current endpoint.
        self._idle: list[HttpConnection] = []
        # Seconds by which the local clock is ahead of the clock of the first responding member,
        # accurate to about 1 s.
        self.clock_ahead_seconds: float | None = None

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()

    async def ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        """Send a message to /v3/`path` and return the response of any member.

        Args:
            path: Path below /v3/.
            message: The JSON message.
            changes: True if the request must not be repeated: once it was sent, no other member is
                tried.

        Raises:
            Refusal: etcd rejected the request.
            OutcomeUnknown: A request with `changes` got no response, or an error after which etcd may
                have applied it.
            Unreachable: Every member failed, or returned an error that is not a `Refusal`.
        """
        reason = ""
        for _ in self._endpoints:
            asked = self._current
            try:
                return await self._ask_one(path, message)
            except Refusal:
                raise
            except (StorageError, HttpError) as error:
                reason = await self._next(asked, error)
                if changes and not isinstance(error, ConnectionFailed):
                    raise OutcomeUnknown(f"etcd did not confirm the request: {reason}") from error
        raise Unreachable(f"no member of etcd can process requests: {reason}")

    @asynccontextmanager
    async def stream(self, path: str, message: Message) -> AsyncIterator[Results]:
        """Send a message and receive a stream of responses without a time limit.

        Raises:
            StorageError: etcd rejected the request or did not respond.
        """
        asked, connection = self._current, None
        try:
            # With this header, etcd ends a watch if it loses its quorum.
            headers = {**await self._headers(), "Grpc-Metadata-hasleader": "true"}
            connection = await self._connect()
            with _limited(self._timeout_seconds):
                status = await connection.post(f"/v3/{path}", message, headers)
                if status != HTTP_OK:
                    raise _problem(status, await connection.body())
        except BaseException as error:
            if connection is not None:  # also on cancellation
                await connection.close()
            if not isinstance(error, StorageError | HttpError):
                raise
            self._token = None  # the token may have expired, and a new token is cheap
            raise StorageError(f"etcd: {await self._next(asked, error)}") from error
        try:
            yield Results(connection)
        finally:
            await connection.close()

    async def _ask_one(self, path: str, message: Message) -> Message:
        try:
            return await self._post(path, message, await self._headers())
        except Refusal as error:
            if self._login is None or error.status != Status.UNAUTHENTICATED:
                raise
            self._token = None  # the token has expired
            return await self._post(path, message, await self._headers())

    async def _headers(self) -> Mapping[str, str]:
        if self._login is None:
            return {}
        if self._token is None:
            credentials = {"name": self._login.user, "password": self._login.password}
            self._token = (await self._post("auth/authenticate", credentials, {}))["token"]
        return {"Authorization": self._token}

    async def _post(self, path: str, message: Message, headers: Mapping[str, str]) -> Message:
        asked = self._current
        connection = self._idle.pop() if self._idle else await self._connect()
        is_reusable = False
        try:
            with _limited(self._timeout_seconds):
                status = await connection.post(f"/v3/{path}", message, headers)
                body = await connection.body()
            if self.clock_ahead_seconds is None and connection.date is not None:
                said = parsedate_to_datetime(connection.date).timestamp()
                self.clock_ahead_seconds = time.time() - said
            is_reusable = connection.is_reusable
        finally:
            if is_reusable and asked == self._current:
                self._idle.append(connection)
            else:
                await connection.close()
        if status != HTTP_OK:
            raise _problem(status, body)
        answer: Message = json.loads(body)
        return answer

    async def _connect(self) -> HttpConnection:
        return await connect(self._endpoints[self._current], self._timeout_seconds, self._trusted)

    async def _next(self, failed: int, error: StorageError | HttpError) -> str:
        """Switch to another member than the failed one; return the error with its address."""
        if failed == self._current:  # otherwise another task has switched already
            self._current = (failed + 1) % len(self._endpoints)
            await self.aclose()
        return f"{self._endpoints[failed].geturl()}: {error.message}"


class Results:
    """The stream of responses to one message."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._lines = Lines()
        self._received: deque[Message] = deque()

    async def next(self) -> Message | None:
        """Return the next response; None at the end. Raises StorageError if it is an error."""
        while not self._received:
            try:
                part = await self._connection.next_part()
            except HttpError as error:
                raise StorageError(error.message) from error
            if part is None:
                return None
            self._received.extend(json.loads(line) for line in self._lines.feed(part))
        said = self._received.popleft()
        if "error" in said:
            raise StorageError(f"etcd: {said['error'].get('message', said['error'])}")
        result: Message = said["result"]
        return result


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Limit the duration of a block; raises NoResponse."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise NoResponse(f"no response in {seconds:g} s")


def _problem(status: int, body: bytes) -> StorageError:
    """Return the error of a response: a Refusal if etcd certainly did not apply the request."""
    try:
        said = json.loads(body)
        code, text = int(said.get("code", 0)), said.get("message") or said.get("error")
    except (ValueError, AttributeError):
        return StorageError(f"HTTP status {status}")
    return Refusal(code, str(text)) if code in REFUSALS else StorageError(str(text))
