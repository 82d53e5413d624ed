"""What handlers are: which answers they give, and how."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Coroutine, Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from kbroker import handlers
from kbroker.handlers.context import Context
from kbroker.handlers.registry import HANDLER_MODULES, load_apis
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the type itself."""
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from alternatives(each)
    else:
        yield annotation


def complaint(key: ApiKey, handler: Callable[..., Any]) -> str:
    """Return the error in the declared types of a handler; see `kbroker.partitions.waiters`."""
    hints = get_type_hints(handler)
    if hints["request"] is not messages.request_class(key):
        return f"it takes {hints['request']}"
    returned = hints["return"]
    for each in alternatives(returned):
        outcomes = [each]
        if get_origin(each) is Coroutine:
            if inspect.iscoroutinefunction(handler):
                return "awaiting it gives something to be awaited"
            outcomes = list(alternatives(get_args(each)[2]))
        for outcome in outcomes:
            if not is_outcome(key, outcome):
                return f"it returns {outcome}"
    return ""


def is_outcome(key: ApiKey, found: Any) -> bool:
    """Whether this may come of a request: an answer, or what becomes one."""
    kind = get_origin(found) or found
    if kind is Waiting and key not in (ApiKey.FETCH, ApiKey.SHARE_FETCH):
        return False  # the answer to anything else is not looked for again and again
    if kind in (Pending, Waiting):
        (found,) = get_args(found)
    elif isinstance(kind, type) and issubclass(kind, Pending):
        return True  # of a coordinator, whose answers are of many types
    return found in (NoneType, Encoded, messages.response_class(key))


def test_every_module_that_serves_something_is_known() -> None:
    serving = set()
    for each in pkgutil.iter_modules(handlers.__path__):
        module = importlib.import_module(f"{handlers.__name__}.{each.name}")
        functions = [it for it in vars(module).values() if hasattr(it, "__served__")]
        if any(it.__module__ == module.__name__ for it in functions):
            serving.add(each.name)
    assert serving == set(HANDLER_MODULES)


@pytest.mark.parametrize("key", load_apis())
def test_a_handler_says_what_comes_of_a_request(key: ApiKey) -> None:
    assert complaint(ApiKey(key), load_apis()[key].handler) == ""


def test_what_is_not_an_outcome_is_found() -> None:
    def parks(ctx: Context, request: HeartbeatRequest) -> Waiting[HeartbeatResponse]:
        raise NotImplementedError

    def answers_another(ctx: Context, request: HeartbeatRequest) -> FetchResponse:
        raise NotImplementedError

    async def twice(ctx: Context, request: FetchRequest) -> Coroutine[Any, Any, FetchResponse]:
        raise NotImplementedError

    assert "Waiting" in complaint(ApiKey.HEARTBEAT, parks)
    assert "takes" in complaint(ApiKey.FETCH, parks)
    assert "FetchResponse" in complaint(ApiKey.HEARTBEAT, answers_another)
    assert "awaited" in complaint(ApiKey.FETCH, twice)
