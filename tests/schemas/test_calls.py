"""Calls of the registry: permissions, reads and writes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.requests import Request

from kbroker.schemas.calls import AuthorizedCalls
from kbroker.schemas.core.errors import BAD_REQUEST, NO_SUCH_SCHEMA, RegistryError
from kbroker.schemas.core.registry import WritePlan
from kbroker.security.acls import AclOperation


class CountedTopic:
    """A topic that counts its reads and writes."""

    def __init__(self) -> None:
        self.store = object()
        self.reads = 0
        self.writes = 0

    async def catch_up(self) -> None:
        self.reads += 1

    async def write(self, plan: Any) -> Any:
        self.writes += 1
        return plan(self.store).response


class RecordedAccess:
    """An access control that records its checks."""

    def __init__(self) -> None:
        self.checked: list[tuple[AclOperation, str | None]] = []
        self.checked_again: list[tuple[AclOperation, str | None]] = []

    def check(self, _: Request, operation: AclOperation, subject: str | None) -> None:
        self.checked.append((operation, subject))

    def check_again(self, _: Request, operation: AclOperation, subject: str | None) -> None:
        self.checked_again.append((operation, subject))


@pytest.fixture
def topic() -> CountedTopic:
    return CountedTopic()


@pytest.fixture
def access() -> RecordedAccess:
    return RecordedAccess()


@pytest.fixture
def calls(topic: CountedTopic, access: RecordedAccess) -> AuthorizedCalls:
    return AuthorizedCalls(cast(Any, topic), cast(Any, access))


async def test_topic_is_read_before_the_first_call_only(
    calls: AuthorizedCalls, topic: CountedTopic
) -> None:
    assert await calls.read(lambda: topic.reads) == 1
    assert await calls.read(lambda: topic.reads) == 1


async def test_topic_is_read_again_if_something_is_not_found(
    calls: AuthorizedCalls, topic: CountedTopic
) -> None:
    def find_late() -> str:
        if topic.reads < 2:
            raise RegistryError(NO_SUCH_SCHEMA, "Schema not found")
        return "found"

    assert await calls.read(find_late) == "found"


async def test_topic_is_not_read_again_for_other_errors(
    calls: AuthorizedCalls, topic: CountedTopic
) -> None:
    def raise_bad_request() -> None:
        raise RegistryError(BAD_REQUEST, "wrong")

    with pytest.raises(RegistryError):
        await calls.read(raise_bad_request)
    assert topic.reads == 1


@pytest.mark.parametrize(("entries", "writes"), [((), 0), ((cast(Any, "entry"),), 1)])
async def test_plan_without_entries_is_not_written(
    calls: AuthorizedCalls,
    access: RecordedAccess,
    topic: CountedTopic,
    entries: Any,
    writes: int,
) -> None:
    request = Request({"type": "http", "path_params": {"subject": "s"}})

    async def write(request: Request) -> object:
        return await calls.write(request, lambda _: WritePlan(entries, "answer"))

    assert await calls.with_permission(AclOperation.WRITE, write)(request) == "answer"
    assert topic.writes == writes
    # A plan that writes nothing needs no second check.
    assert access.checked_again == [(AclOperation.WRITE, "s")] * writes


async def test_read_needs_permission_for_the_subject_of_the_request(topic: CountedTopic) -> None:
    access = RecordedAccess()
    calls = AuthorizedCalls(cast(Any, topic), cast(Any, access))
    request = Request({"type": "http", "path_params": {"subject": "s"}})
    assert await calls.read_call(lambda _: "seen")(request) == "seen"
    assert access.checked == [(AclOperation.READ, "s")]


async def test_topic_is_read_again_after_its_state_was_discarded(
    calls: AuthorizedCalls, topic: CountedTopic
) -> None:
    """A list read in between would lack the schemas that are not replayed again yet."""
    assert await calls.read(lambda: topic.reads) == 1
    topic.store = object()  # the topic was deleted, or truncated after an unclean election
    assert await calls.read(lambda: topic.reads) == 2
    assert await calls.read(lambda: topic.reads) == 2
