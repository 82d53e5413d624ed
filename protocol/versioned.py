"""The form of keys and values in the logs of coordinators: an int16 version and a struct in it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from .compile import decode, encode_bytes
from .primitives import Buffer, DecodeError

_VERSION = struct.Struct(">h")

VERSION_SIZE = _VERSION.size

M = TypeVar("M")


def encode_versioned(message: object, version: int) -> bytes:
    """A message in the form of `version`, with the version in front.

    Raises:
        EncodeError: a field does not fit, or there is no such version.
    """
    return encode_bytes(message, version, _VERSION.pack(version))


def version_of(buffer: Buffer) -> int:
    """The version in front. Raises DecodeError when there is none, or a negative one."""
    try:
        version: int = _VERSION.unpack_from(buffer)[0]
    except struct.error:
        raise DecodeError(f"no version in {len(buffer)} bytes") from None
    if version < 0:
        raise DecodeError(f"version {version}")
    return version


def decode_versioned(cls: type[M], buffer: Buffer) -> M:
    """All of `buffer` as a message. Raises DecodeError, for unknown versions too."""
    value, end = decode(cls, buffer, version_of(buffer), VERSION_SIZE)
    if end != len(buffer):
        raise DecodeError(f"{cls.__name__}: {len(buffer) - end} bytes left over")
    return value


class RecordKinds:
    """Kinds of records, each with the int16 that stands in front of its key, and what is in their values.

    Parameters:
      keys: The class of keys of each kind.
      values: The class of values by that of their keys; None for values that nobody reads.
      value_version: The version in which values are written.
    """

    def __init__(
        self,
        keys: Mapping[int, type[Any]],
        values: Mapping[type[Any], type[Any] | None],
        value_version: int,
    ) -> None:
        self._keys = keys
        self._kinds = {cls: kind for kind, cls in keys.items()}
        self._values = values
        self._value_version = value_version

    def encode_key(self, key: Any) -> bytes:
        """The key of a record, with its kind in front.

        Raises:
            EncodeError: a name has more than 32767 bytes.
        """
        return encode_versioned(key, self._kinds[type(key)])

    def encode_value(self, value: Any) -> bytes:
        """The value of a record, with its version in front. Raises EncodeError."""
        return encode_versioned(value, self._value_version)

    def decode_key(self, buffer: Buffer) -> Any:
        """The key of a record; None for a kind that is not one of these.

        Raises:
            DecodeError: the bytes are no key.
        """
        cls = self._keys.get(version_of(buffer))
        return None if cls is None else decode_versioned(cls, buffer)

    def decode_value(self, key: Any, buffer: Buffer) -> Any:
        """The value under a key; None where it says nothing that matters.

        Raises:
            DecodeError: the bytes are no value of that kind, or of an unknown version.
        """
        cls = self._values[type(key)]
        return None if cls is None else decode_versioned(cls, buffer)
