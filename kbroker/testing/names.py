"""APIs, versions and errors as a test names them; a wrong name is answered with the right one."""

from __future__ import annotations

import difflib

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode


def api_key(name: str) -> ApiKey:
    """The API that a test names as Kafka does: "Produce", or "PRODUCE". Raises ValueError."""
    plain = name.replace("_", "").lower()
    for key in ApiKey:
        if key.api_name.lower() == plain:
            return key
    raise ValueError(f"there is no API {name!r}{close(name, [key.api_name for key in ApiKey])}")


def error_named(name: str | int) -> ErrorCode:
    """The error of this name or number. Raises ValueError."""
    code = ErrorCode(name) if isinstance(name, int) else _error_called(name.upper())
    if code is ErrorCode.NONE:
        raise ValueError("NONE is no error; a fault that names no error only counts")
    return code


def _error_called(name: str) -> ErrorCode:
    if name not in ErrorCode.__members__:
        raise ValueError(f"there is no error {name!r}{close(name, list(ErrorCode.__members__))}")
    return ErrorCode[name]


def close(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def is_after(at: str) -> bool:
    """Whether a fault comes after the work. Raises ValueError."""
    if at not in ("before", "after"):
        raise ValueError(f"at={at!r}: a fault comes before or after the work")
    return at == "after"


def format_versions(versions: range) -> str:
    """Versions as a person reads them: "0 to 7"."""
    return f"{versions.start} to {versions.stop - 1}"
