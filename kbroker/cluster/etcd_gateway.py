"""etcd's JSON gateway: requests to one of several members, and what came of them.

The gateway speaks proto3's JSON: 64-bit integers are texts, keys and values are base64, and a field
that has its default is left out. Source: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
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
    NoAnswer,
    connect,
)
from kbroker.storage.errors import StorageError
from kbroker.text.lines import Lines

from .store import OutcomeUnknown, Unreachable

Message = dict[str, Any]


class Status(IntEnum):
    """Those of gRPC's codes that are looked at."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNAUTHENTICATED = 16


REFUSALS = frozenset(Status)
"""What is answered so was not done; all others may have been."""


class Refusal(StorageError):
    """etcd says that something is not done, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"etcd refuses: {message}")
        self.status = status


class Login(NamedTuple):
    """A user of etcd."""

    user: str
    password: str


def to_base64(data: bytes) -> str:
    return b64encode(data).decode()


class Gateway:
    """A client of one cluster of etcd. Call `aclose` at the end.

    Parameters: `endpoints` are addresses such as http://host:2379, of which one is asked until it
    fails; `timeout_seconds` is how long one of them has for an answer; `login` is who asks, and
    `trusted` whom to believe, where etcd wants that.
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
        self._asked = 0
        """The number of the endpoint that is asked."""
        self._timeout_seconds = timeout_seconds
        self._login = login
        self._trusted = trusted
        self._token: str | None = None
        self._idle: list[HttpConnection] = []
        """Connections to that endpoint."""
        self.clock_ahead_seconds: float | None = None
        """How far this machine's clock is ahead of the member's that answered first, to a second."""

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            await self._idle.pop().close()

    async def ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        """Send a message to /v3/`path` and return the answer, from whichever member gives one.

        Parameters: `changes` says that it must not be done twice: no other member is asked once it
        was sent.

        Raises Refusal; OutcomeUnknown for something that changes, and Unreachable, when there is none.
        """
        reason = ""
        for _ in self._endpoints:
            asked = self._asked
            try:
                return await self._ask_one(path, message)
            except Refusal:
                raise
            except (StorageError, HttpError) as error:
                reason = await self._next(asked, error)
                if changes and not isinstance(error, ConnectionFailed):
                    raise OutcomeUnknown(f"etcd gave no answer: {reason}") from error
        raise Unreachable(f"no member of etcd answers: {reason}")

    @asynccontextmanager
    async def stream(self, path: str, message: Message) -> AsyncIterator[Results]:
        """As `ask`, for many answers: nobody can say when the next one comes.

        Raises StorageError.
        """
        asked, connection = self._asked, None
        try:
            # With this header etcd ends a watch that hears of nothing, for want of a majority.
            headers = {**await self._headers(), "Grpc-Metadata-hasleader": "true"}
            connection = await self._connect()
            with _limited(self._timeout_seconds):
                status = await connection.post(f"/v3/{path}", message, headers)
                if status != HTTP_OK:
                    raise _problem(status, await connection.body())
        except BaseException as error:
            if connection is not None:  # also when whoever waits is cancelled
                await connection.close()
            if not isinstance(error, StorageError | HttpError):
                raise
            self._token = None  # it may be too old, and another one is soon had
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
            self._token = None  # it lives for some minutes
            return await self._post(path, message, await self._headers())

    async def _headers(self) -> Mapping[str, str]:
        if self._login is None:
            return {}
        if self._token is None:
            who = {"name": self._login.user, "password": self._login.password}
            self._token = (await self._post("auth/authenticate", who, {}))["token"]
        return {"Authorization": self._token}

    async def _post(self, path: str, message: Message, headers: Mapping[str, str]) -> Message:
        asked = self._asked
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
            if is_reusable and asked == self._asked:
                self._idle.append(connection)
            else:
                await connection.close()
        if status != HTTP_OK:
            raise _problem(status, body)
        answer: Message = json.loads(body)
        return answer

    async def _connect(self) -> HttpConnection:
        return await connect(self._endpoints[self._asked], self._timeout_seconds, self._trusted)

    async def _next(self, failed: int, error: StorageError | HttpError) -> str:
        """Ask another member than this one from now on; returns what was wrong with it."""
        if failed == self._asked:  # else somebody has seen it already
            self._asked = (failed + 1) % len(self._endpoints)
            await self.aclose()
        return f"{self._endpoints[failed].geturl()}: {error.message}"


class Results:
    """The answers that come of one message, until etcd ends them."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._lines = Lines()
        self._come: deque[Message] = deque()

    async def next(self) -> Message | None:
        """The next one, None at the end. Raises StorageError: an error is in one of them."""
        while not self._come:
            try:
                part = await self._connection.more()
            except HttpError as error:
                raise StorageError(error.message) from error
            if part is None:
                return None
            self._come.extend(json.loads(line) for line in self._lines.feed(part))
        said = self._come.popleft()
        if "error" in said:
            raise StorageError(f"etcd: {said['error'].get('message', said['error'])}")
        result: Message = said["result"]
        return result


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """A time for what is done within; raises NoAnswer."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise NoAnswer(f"no answer in {seconds:g} s")


def _problem(status: int, body: bytes) -> StorageError:
    """What an answer that is none says: Refusal, or another error when it may have been done."""
    try:
        said = json.loads(body)
        code, text = int(said.get("code", 0)), said.get("message") or said.get("error")
    except (ValueError, AttributeError):
        return StorageError(f"HTTP status {status}")
    return Refusal(code, str(text)) if code in REFUSALS else StorageError(str(text))
