"""A pytest plugin for runs with compiled modules: leaves out what only the interpreted ones can show."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

import pytest


def is_compiled(module: ModuleType | None) -> bool:
    return str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))


def is_compiled_code(owner: Any, name: str) -> bool:
    """Whether an attribute is code that calls compiled functions without looking them up.

    Constants of modules are looked up as ever.
    """
    if isinstance(owner, ModuleType):
        return is_compiled(owner) and callable(getattr(owner, name, None))
    if isinstance(owner, type):
        return is_compiled(sys.modules.get(owner.__module__))
    return is_compiled_code(type(owner), name) and callable(getattr(type(owner), name, None))


def pytest_configure() -> None:
    """A test that would change compiled code is left out."""
    change: Any = pytest.MonkeyPatch.setattr

    def change_unless_compiled(patch: Any, owner: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(owner, str) and is_compiled_code(owner, rest[0]):
            pytest.skip(f"it changes what is compiled: {rest[0]} of {owner}")
        change(patch, owner, *rest, **options)

    pytest.MonkeyPatch.setattr = change_unless_compiled  # type: ignore[method-assign,assignment]
