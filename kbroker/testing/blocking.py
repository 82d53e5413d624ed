"""Verbs of the async kit for programs that are not async: each is declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")
Handle = TypeVar("Handle")
Kit = TypeVar("Kit")
Run = Callable[[Handle, Callable[[Kit], Awaitable[T]]], T]


@overload
def blocking(
    verb: Callable[Concatenate[Kit, P], Awaitable[T]], run: Run[Handle, Kit, T]
) -> Callable[Concatenate[Handle, P], T]: ...
@overload
def blocking(
    verb: Callable[Concatenate[Kit, P], T], run: Run[Handle, Kit, T]
) -> Callable[Concatenate[Handle, P], T]: ...
def blocking(
    verb: Callable[Concatenate[Kit, P], Awaitable[T] | T], run: Run[Handle, Kit, T]
) -> Callable[Concatenate[Handle, P], T]:
    """Make a method that does what a verb of a kit does, and returns when it is done.

    The method has the name, the signature and the docstring of the verb.

    Args:
        verb: A method of a kit, async or not. A subclass of the kit may override it.
        run: Calls a function with the kit of a handle, in the thread where that kit lives.
    """

    @functools.wraps(verb)
    def method(handle: Handle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def call(kit: Kit) -> T:
            found = getattr(kit, verb.__name__)(*args, **kwargs)
            result: T = await found if inspect.isawaitable(found) else found
            return result

        return run(handle, call)

    return method
