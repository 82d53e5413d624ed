"""Answers that are sent again and again with nothing but other numbers in them."""

from __future__ import annotations

import struct

from .compile import Encoded, encode_bytes
from .schema import Message


class Stencil:
    """One message, encoded, with room for numbers that stand side by side in it.

    To fill it in takes a fifth of the time that it takes to make the message and to encode it.

    Parameters:
      message: what is sent, with `numbers` in the fields that change.
      version: in which it is sent.
      layout: how these fields are written, for `struct`: ">iq" are 32 bits and 64 bits.
      numbers: in the order of the fields. As bytes they are nowhere else.

    Raises:
      ValueError: the numbers do not stand side by side in this version.
      EncodeError: as `compile.encode`.
    """

    __slots__ = ("_after", "_before", "_cls", "_pack", "_version")

    def __init__(self, message: object, version: int, layout: str, *numbers: int) -> None:
        assert isinstance(message, Message)
        self._cls = type(message)
        self._version = version
        self._pack = struct.Struct(layout).pack
        self._before, found, self._after = encode_bytes(message, version).partition(
            self._pack(*numbers)
        )
        if not found:
            raise ValueError(f"{self._cls.__name__} version {version} has no such row of numbers")

    def filled(self, *numbers: int) -> Encoded:
        """The message with other numbers. Raises struct.error for one that does not fit."""
        body = self._before + self._pack(*numbers) + self._after
        return Encoded(self._cls, self._version, body)
