"""Which function serves which API in which versions. What ApiVersions tells is derived from it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import NamedTuple, TypeVar, cast

from kbroker import handlers
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .context import Api, Handler

Function = TypeVar("Function", bound=Callable[..., object])


class Served(NamedTuple):
    """What a handler declares of itself."""

    key: ApiKey
    versions: range
    only_looks: bool


def handles(
    key: ApiKey, *, versions: str, only_looks: bool = False
) -> Callable[[Function], Function]:
    """Mark a function as the handler of an API.

    Args:
        key: The API.
        versions: Served versions as "first-last", or the only one.
        only_looks: No client sends the request for its effect, so that it is skipped if the client has
            disconnected.

    Returns:
        A decorator that returns the function itself.
    """
    first, _, last = versions.partition("-")
    served = range(int(first), int(last or first) + 1)

    def mark(function: Function) -> Function:
        function.__served__ = Served(key, served, only_looks)  # type: ignore[attr-defined]
        return function

    return mark


@cache
def load_apis() -> Mapping[int, Api]:
    """Import all modules of `kbroker.handlers` and return what they serve, by API key.

    Every call returns the same mapping.
    """
    names = [each.name for each in pkgutil.iter_modules(handlers.__path__)]
    modules = (importlib.import_module(f"{handlers.__name__}.{name}") for name in names)
    return MappingProxyType(collect_apis(modules))


def collect_apis(modules: Iterable[ModuleType]) -> dict[int, Api]:
    """Return the APIs that the modules' functions serve. Raises ValueError on a key twice."""
    apis: dict[int, Api] = {}
    for module in modules:
        for function in vars(module).values():
            served: Served | None = getattr(function, "__served__", None)
            if served is None or function.__module__ != module.__name__:
                continue
            key, versions, only_looks = served
            if key in apis:
                raise ValueError(f"{key.name} has two handlers")
            request_class = messages.request_class(key)
            # Each handler takes the request class of its own key; test_registry.py checks that.
            handler = cast(Handler, function)
            apis[key] = Api(key, versions, handler, request_class, only_looks)
    return dict(sorted(apis.items()))
