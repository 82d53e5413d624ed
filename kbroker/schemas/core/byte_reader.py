"""Reader of encoded data, with a limit on the number of steps."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import TypeAlias

from .limits import DEPTH_MAX

# Converts bytes to the text of a JSON string.
BytesText: TypeAlias = Callable[[bytes], str]
# Characters of a name that cost one step, because a name occurs in the JSON of every value.
NAME_PART = 32


class InvalidValue(ValueError):
    """Data does not match its schema; the message states why."""


class LimitExceeded(Exception):
    """Data exceeds the step limit: a few bytes can encode an arbitrarily long list."""


class Source:
    """Data with a read position and the number of remaining steps.

    Attributes:
        data: The encoded data.
        at: Index of the next byte.
        end: Index after the last byte.
        bytes_text: Converts binary values to text.
    """

    def __init__(self, data: bytes, steps: int, bytes_text: BytesText | None = None) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.bytes_text = bytes_text or base64_text
        self._steps_left = steps

    def spend(self, steps: int = 1) -> None:
        """Use some steps. Raises LimitExceeded if too few are left."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise LimitExceeded

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises InvalidValue."""
        start, end = self.at, self.at + size
        if size < 0:
            raise InvalidValue(f"byte {start}: invalid size {size}")
        if end > self.end:
            raise InvalidValue(f"byte {start}: expected {size} bytes, found {self.end - start}")
        self.at = end
        return self.data[start:end]

    def text(self, size: int) -> str:
        """Return the next bytes as UTF-8. Raises InvalidValue."""
        at = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise InvalidValue(f"byte {at}: invalid UTF-8") from None

    def varint(self) -> int:
        """Return the next varint of up to 64 bits. Raises InvalidValue."""
        data, at, end = self.data, self.at, self.end
        value = shift = 0
        while at < end and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value & 0xFFFF_FFFF_FFFF_FFFF
            shift += 7
        raise InvalidValue(f"byte {self.at}: invalid varint")

    def zigzag(self) -> int:
        """Return the next zigzag-encoded varint. Raises InvalidValue."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)


def cost_of(name: str) -> int:
    """Return the number of steps that each use of a name costs."""
    return len(name) // NAME_PART


def check_depth(depth: int) -> None:
    """Raise InvalidValue if data is nested too deeply."""
    if depth > DEPTH_MAX:
        raise InvalidValue(f"nested deeper than {DEPTH_MAX} levels")


def number(value: float) -> object:
    """Return a number for a JSON document: infinite numbers and NaN become strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def base64_text(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode()


def latin_text(data: bytes) -> str:
    """Return bytes as a string with one character (up to U+00FF) per byte, as Avro's JSON does."""
    return data.decode("latin-1")
