"""APIs, versions and errors by the names that a test gives; errors suggest the right name."""

from __future__ import annotations

import difflib

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode


def api_key(name: str) -> ApiKey:
    """Return the API with a name as in Kafka: "Produce" or "PRODUCE".

    Raises:
        ValueError: The API does not exist; the message suggests a similar one.
    """
    plain = name.replace("_", "").lower()
    for key in ApiKey:
        if key.api_name.lower() == plain:
            return key
    raise ValueError(f"there is no API {name!r}{close(name, [key.api_name for key in ApiKey])}")


def error_named(name: str | int) -> ErrorCode:
    """Return the error with a name or number.

    Raises:
        ValueError: The error does not exist, or is NONE.
    """
    code = ErrorCode(name) if isinstance(name, int) else _error_called(name.upper())
    if code is ErrorCode.NONE:
        raise ValueError("NONE is not an error; leave out error to only count requests")
    return code


def _error_called(name: str) -> ErrorCode:
    if name not in ErrorCode.__members__:
        raise ValueError(f"there is no error {name!r}{close(name, list(ErrorCode.__members__))}")
    return ErrorCode[name]


def close(name: str, known: list[str]) -> str:
    """Return a suggestion of the most similar name, or an empty string."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def is_after(at: str) -> bool:
    """Return True if a fault is injected after the request is handled.

    Raises:
        ValueError: `at` is neither "before" nor "after".
    """
    if at not in ("before", "after"):
        raise ValueError(f"invalid at={at!r} (valid: 'before', 'after')")
    return at == "after"


def format_versions(versions: range) -> str:
    """Return a range of versions in words: "0 to 7"."""
    return f"{versions.start} to {versions.stop - 1}"
