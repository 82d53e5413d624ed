"""Errors and limits of the encoders from JSON documents to data."""

from __future__ import annotations

from decimal import Decimal

# Maximum number of encoding steps for a document; unions with many branches repeat steps.
STEPS_MAX = 2_000_000
# Maximum number of characters of a value in error messages.
SHOWN_MAX = 60


class Mismatch(ValueError):
    """A value that does not match the schema, with its path in the document.

    Args:
        value: The value.
        wanted: Description of the values that match.
        reason: The whole reason, if it is not that the value is not a wanted one.
    """

    def __init__(self, value: object, wanted: str, *, reason: str = "") -> None:
        super().__init__()
        self._reason = reason or f"{shown(value)} is not {wanted}"
        self._path = ""

    def at(self, name: str) -> Mismatch:
        """Prepend a field name or index to the path."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{name}{dot}{self._path}"
        return self

    def __str__(self) -> str:
        return f"{self._path}: {self._reason}" if self._path else self._reason


class TooManySteps(Mismatch):
    """A document that takes too many steps to encode."""


class Steps:
    """Number of steps that may still be used for a document."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, value: object) -> None:
        """Use a step for a value. Raises TooManySteps if no step is left."""
        self._left -= 1
        if self._left < 0:
            raise TooManySteps(value, "", reason=f"encoding needs more than {STEPS_MAX} steps")


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
