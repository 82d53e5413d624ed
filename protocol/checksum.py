"""CRC-32C, the checksum of record batches and of kbroker's own files."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Protocol

from .primitives import Buffer

_PACKAGE = "crc32c"
_EXTENSION = "crc32c._crc32c"


class Crc32c(Protocol):
    """A function that computes a checksum."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """Return the checksum of `data`, after bytes with the checksum `value`."""


def _extension() -> ModuleType | None:
    """Import the extension module of crc32c alone, or return None if it does not exist.

    The package also imports its command line and reads its own version with `importlib.metadata`. That
    takes a twentieth of the time and 1.3 MB of the memory of a broker's start.
    """
    package = find_spec(_PACKAGE)
    if package is None or _PACKAGE in sys.modules:
        return None
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # The package finds this module if another program imports it.
    sys.modules[_EXTENSION] = module
    return module


def _find() -> Crc32c:
    """Return the function of the package crc32c."""
    function: Crc32c | None = getattr(_extension(), _PACKAGE, None)
    if function is None:
        from crc32c import crc32c as function
    assert function is not None
    return function


crc32c = _find()
