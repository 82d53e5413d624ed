"""Modules whose code runs when an attribute is first used, not when they are imported.

Trio and other libraries import modules at their own import that a plain broker never uses, such as
`ssl`. With OpenSSL, they take 6 MB of memory. `defer_imports` puts a `DeferredModule` in the place of
each module before the libraries are imported. Python 3.15 has a statement for this (PEP 810).

It has no effect on a module of which an importer takes attributes at once (`from ssl import ...`).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType

# Modules that a broker without TLS, passwords, compaction and modern groups does not use. The first
# use of each blocks the event loop for a few milliseconds.
RARELY_USED = ("ssl", "hashlib", "hmac", "secrets", "idna", "pickle", "bz2", "lzma")

# Not one lock per module: two threads that load modules which use each other would wait forever.
_lock = RLock()


class _LoadingModule(ModuleType):
    """A module that is being loaded. Other threads wait, and its own code continues."""

    def __getattr__(self, name: str) -> object:
        with _lock:
            return _attribute(self, name)


class DeferredModule(ModuleType):
    """A module that is not loaded yet. The first access to an attribute loads it."""

    def __getattr__(self, name: str) -> object:
        """Load the module and return the attribute.

        Raises:
            AttributeError: The module does not have the attribute.
            ImportError: The module cannot be loaded.
        """
        with _lock:
            if type(self) is DeferredModule:  # no other thread was faster
                _load(self)
            return _attribute(self, name)


def _load(module: ModuleType) -> None:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__class__ = _LoadingModule
    try:
        module.__spec__.loader.exec_module(module)
    except BaseException:
        module.__class__ = DeferredModule
        raise
    module.__class__ = ModuleType


def _attribute(module: ModuleType, name: str) -> object:
    try:
        value: object = module.__dict__[name]
    except KeyError:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None
    return value


def defer_imports(names: tuple[str, ...] = RARELY_USED) -> None:
    """Defer the loading of top-level modules that nothing has imported yet.

    Only a program may call this, at its start: it affects all importers in the process.

    Args:
        names: Names of modules.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            module.__class__ = DeferredModule
            sys.modules[name] = module


def is_deferred(name: str) -> bool:
    """Return True if a module is imported but not loaded."""
    return isinstance(sys.modules.get(name), DeferredModule)
