"""Lookup of APIs and errors by name. For an unknown name, a similar name is suggested."""

from __future__ import annotations

import difflib

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode


def api_key(name: str) -> ApiKey:
    """Return the API with a name. The case is ignored: "Produce" or "PRODUCE".

    Raises:
        ValueError: The API does not exist; the message suggests a similar one.
    """
    plain = name.replace("_", "").lower()
    for key in ApiKey:
        if key.api_name.lower() == plain:
            return key
    raise ValueError(
        f"there is no API {name!r}{suggest_similar(name, [key.api_name for key in ApiKey])}"
    )


def parse_error(name: str | int) -> ErrorCode:
    """Return the error with a name or number.

    Raises:
        ValueError: The error does not exist, or is NONE.
    """
    code = ErrorCode(name) if isinstance(name, int) else _error_by_name(name.upper())
    if code is ErrorCode.NONE:
        raise ValueError("NONE is not an error; to only count requests, omit the argument `error`")
    return code


def _error_by_name(name: str) -> ErrorCode:
    if name not in ErrorCode.__members__:
        raise ValueError(
            f"there is no error {name!r}{suggest_similar(name, list(ErrorCode.__members__))}"
        )
    return ErrorCode[name]


def suggest_similar(name: str, known: list[str]) -> str:
    """Return a suggestion of the most similar name, or an empty string."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def is_applied_after_handling(at: str) -> bool:
    """Return True if a fault is applied after the request is handled, False if before.

    Raises:
        ValueError: `at` is neither "before" nor "after".
    """
    if at not in ("before", "after"):
        raise ValueError(f"invalid at={at!r} (valid: 'before', 'after')")
    return at == "after"


def format_versions(versions: range) -> str:
    """Return a range of versions in words: "0 to 7"."""
    return f"{versions.start} to {versions.stop - 1}"
