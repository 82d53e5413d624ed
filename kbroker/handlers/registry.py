"""Registry of API handlers and their versions. ApiVersions responses are derived from it."""

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
    """Declaration of a handler: API, versions, and whether it only reads."""

    key: ApiKey
    versions: range
    read_only: bool


def handles(
    key: ApiKey, *, versions: str, read_only: bool = False
) -> Callable[[Function], Function]:
    """Mark a function as the handler of an API.

    Args:
        key: The API.
        versions: Served versions as "first-last", or a single version.
        read_only: The API only reads, so a request of a disconnected client is skipped.

    Returns:
        A decorator that returns the function itself.
    """
    first, _, last = versions.partition("-")
    served = range(int(first), int(last or first) + 1)

    def mark(function: Function) -> Function:
        function.__served__ = Served(key, served, read_only)  # type: ignore[attr-defined]
        return function

    return mark


@cache
def load_apis() -> Mapping[int, Api]:
    """Import all modules of `kbroker.handlers` and return the APIs that they serve, by API key.

    Every call returns the same mapping.
    """
    names = [each.name for each in pkgutil.iter_modules(handlers.__path__)]
    modules = (importlib.import_module(f"{handlers.__name__}.{name}") for name in names)
    return MappingProxyType(collect_apis(modules))


def collect_apis(modules: Iterable[ModuleType]) -> dict[int, Api]:
    """Return the APIs that the modules' functions serve, by API key.

    Raises:
        ValueError: Two functions serve the same API.
    """
    apis: dict[int, Api] = {}
    for module in modules:
        for function in vars(module).values():
            served: Served | None = getattr(function, "__served__", None)
            if served is None or function.__module__ != module.__name__:
                continue
            key, versions, read_only = served
            if key in apis:
                raise ValueError(f"{key.name} has two handlers")
            request_class = messages.request_class(key)
            # Each handler takes the request class of its own key; test_registry.py checks that.
            handler = cast(Handler, function)
            apis[key] = Api(key, versions, handler, request_class, read_only)
    return dict(sorted(apis.items()))
