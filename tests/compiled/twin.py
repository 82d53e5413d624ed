"""A pytest plugin for compiled modules: it skips tests that only work with interpreted ones."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

import pytest


def is_compiled(module: ModuleType | None) -> bool:
    return str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))


def is_compiled_code(owner: Any, name: str) -> bool:
    """Return True if patching an attribute would not affect compiled callers.

    Constants of modules are still looked up at run time.
    """
    if isinstance(owner, ModuleType):
        return is_compiled(owner) and callable(getattr(owner, name, None))
    if isinstance(owner, type):
        return is_compiled(sys.modules.get(owner.__module__))
    return is_compiled_code(type(owner), name) and callable(getattr(type(owner), name, None))


def pytest_configure() -> None:
    """Skip tests that patch compiled code."""
    change: Any = pytest.MonkeyPatch.setattr

    def change_unless_compiled(patch: Any, owner: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(owner, str) and is_compiled_code(owner, rest[0]):
            pytest.skip(f"the test patches compiled code: {rest[0]} of {owner}")
        change(patch, owner, *rest, **options)

    pytest.MonkeyPatch.setattr = change_unless_compiled  # type: ignore[method-assign,assignment]
