"""Bytes that a schema describes: what may be made of them, and what is said where they do not fit."""

from __future__ import annotations

import base64
import math

from .limits import DEPTH_MAX

NAME_PART = 32
"""So many characters of a name cost a step: names come once in a schema, and in every value."""


class Unfit(ValueError):
    """Bytes are no value of a schema; it says why."""


class TooMuch(Exception):
    """Bytes stand for more than may be made of them: a few can stand for a list without end."""


class Source:
    """Bytes that are read from their beginning, and the steps that this may take."""

    def __init__(self, data: bytes, steps: int) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Take so many steps. Raises TooMuch."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    def take(self, size: int) -> bytes:
        """The next bytes. Raises Unfit."""
        at, behind = self.at, self.at + size
        if size < 0:
            raise Unfit(f"at byte {at} there is a size of {size} bytes")
        if behind > self.end:
            raise Unfit(f"at byte {at} there are to be {size} bytes, and there are {self.end - at}")
        self.at = behind
        return self.data[at:behind]

    def text(self, size: int) -> str:
        """The next bytes as UTF-8. Raises Unfit."""
        at = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise Unfit(f"at byte {at} there is to be a text, and it is no UTF-8") from None

    def varint(self) -> int:
        """The next whole number of up to 64 bits, seven in each byte. Raises Unfit."""
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
        raise Unfit(f"at byte {self.at} there is to be a whole number")

    def zigzag(self) -> int:
        """As `varint`, with a sign. Raises Unfit."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)


def cost_of(name: str) -> int:
    """The steps that a name takes each time it is used."""
    return len(name) // NAME_PART


def check_depth(depth: int) -> None:
    """Raises Unfit."""
    if depth > DEPTH_MAX:
        raise Unfit(f"it is nested deeper than {DEPTH_MAX} levels")


def number(value: float) -> object:
    """A number, or a text for one that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def base64_text(data: bytes) -> str:
    """Bytes as JSON has them."""
    return base64.b64encode(data).decode()
