"""What handlers are: which answers they give, and how."""

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
    def planted() -> None:
        raise NotImplementedError

    module = ModuleType(planted.__module__)
    vars(module)["planted"] = planted
    (api,) = collect_apis([module]).values()
    assert (api.key, api.versions, api.read_only) == (ApiKey.METADATA, range(3, 6), True)
    assert not load_apis()[ApiKey.PRODUCE].read_only


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
