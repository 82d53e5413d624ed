"""Tests of the registry of request handlers and of their declared types."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from kbroker import handlers
from kbroker.handlers.context import Context
from kbroker.handlers.registry import collect_apis, handles, load_apis
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

PLANTED = """
from kbroker.handlers.registry import handles
from kbroker.protocol.api_keys import ApiKey

@handles(ApiKey.METADATA, versions="3-5", read_only=True)
def metadata(ctx, request):
    raise NotImplementedError
"""


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from alternatives(each)
    else:
        yield annotation


def type_error(key: ApiKey, handler: Callable[..., Any]) -> str:
    """Return the error in the declared types of a handler; see `kbroker.partitions.waiters`."""
    hints = get_type_hints(handler)
    if hints["request"] is not messages.request_class(key):
        return f"it takes {hints['request']}"
    returned = hints["return"]
    for each in alternatives(returned):
        outcomes = [each]
        if get_origin(each) is Coroutine:
            if inspect.iscoroutinefunction(handler):
                return "awaiting it returns an awaitable"
            outcomes = list(alternatives(get_args(each)[2]))
        for outcome in outcomes:
            if not is_outcome(key, outcome):
                return f"it returns {outcome}"
    return ""


def is_outcome(key: ApiKey, found: Any) -> bool:
    """Return True if a handler may return this type: a response or its pending form."""
    kind = get_origin(found) or found
    if kind is Waiting and key not in (ApiKey.FETCH, ApiKey.SHARE_FETCH):
        return False  # only fetches are retried on each wake-up
    if kind in (Pending, Waiting):
        (found,) = get_args(found)
    elif isinstance(kind, type) and issubclass(kind, Pending):
        return True  # coordinators respond with many types
    return found in (NoneType, Encoded, messages.response_class(key))


def test_every_module_of_package_is_searched_for_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.setattr(handlers, "__path__", [*handlers.__path__, str(tmp_path)])
    name = f"{handlers.__name__}.planted"
    try:
        with pytest.raises(ValueError, match="METADATA has two handlers"):
            load_apis.__wrapped__()
    finally:
        sys.modules.pop(name, None)


def test_declarations_of_handler_are_served() -> None:
    @handles(ApiKey.METADATA, versions="3-5", read_only=True)
    def fail_unexpectedly() -> None:
        raise NotImplementedError

    module = ModuleType(fail_unexpectedly.__module__)
    vars(module)["planted"] = fail_unexpectedly
    (api,) = collect_apis([module]).values()
    assert (api.key, api.versions, api.read_only) == (ApiKey.METADATA, range(3, 6), True)
    assert not load_apis()[ApiKey.PRODUCE].read_only


@pytest.mark.parametrize("key", load_apis())
def test_handler_declares_request_and_response_types(key: ApiKey) -> None:
    assert type_error(ApiKey(key), load_apis()[key].handler) == ""


def test_wrong_declared_types_are_reported() -> None:
    def returns_waiting(ctx: Context, request: HeartbeatRequest) -> Waiting[HeartbeatResponse]:
        raise NotImplementedError

    def returns_other_response(ctx: Context, request: HeartbeatRequest) -> FetchResponse:
        raise NotImplementedError

    async def returns_awaitable(
        ctx: Context, request: FetchRequest
    ) -> Coroutine[Any, Any, FetchResponse]:
        raise NotImplementedError

    assert "Waiting" in type_error(ApiKey.HEARTBEAT, returns_waiting)
    assert "takes" in type_error(ApiKey.FETCH, returns_waiting)
    assert "FetchResponse" in type_error(ApiKey.HEARTBEAT, returns_other_response)
    assert "awaitable" in type_error(ApiKey.FETCH, returns_awaitable)
