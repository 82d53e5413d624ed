"""Keys and values in the logs of coordinators: an int16 version and a struct in that version."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Generic, TypeVar

from .compile import decode, encode_bytes
from .primitives import Buffer, DecodeError

_VERSION = struct.Struct(">h")

VERSION_SIZE = _VERSION.size

M = TypeVar("M")
K = TypeVar("K")
V = TypeVar("V")


def encode_versioned(message: object, version: int) -> bytes:
    """Encode a message in `version`, with the version as a prefix.

    Raises:
        EncodeError: A field does not fit, or the version is unknown.
    """
    return encode_bytes(message, version, _VERSION.pack(version))


def version_of(buffer: Buffer) -> int:
    """Return the version prefix. Raises DecodeError if it is missing or negative."""
    try:
        version: int = _VERSION.unpack_from(buffer)[0]
    except struct.error:
        raise DecodeError(f"no version in {len(buffer)} bytes") from None
    if version < 0:
        raise DecodeError(f"version {version}")
    return version


def decode_versioned(cls: type[M], buffer: Buffer) -> M:
    """Decode all of `buffer` as a message. Raises DecodeError, also for an unknown version."""
    value, end = decode(cls, buffer, version_of(buffer), VERSION_SIZE)
    if end != len(buffer):
        raise DecodeError(f"{cls.__name__}: {len(buffer) - end} bytes left over")
    return value


class UnreadValue:
    """The value of a record whose content is not needed, and so is not decoded."""

    __slots__ = ()


class RecordKinds(Generic[K, V]):
    """Record types of a coordinator's log, by the int16 in front of the key (the kind).

    Args:
        keys: Key class of each kind. If two kinds have the same class, the last one is written.
        values: Value class of each key class; UnreadValue for values that are not decoded.
        value_version: Version in which values are written.
    """

    def __init__(
        self,
        keys: Mapping[int, type[K]],
        values: Mapping[type[K], type[V | UnreadValue]],
        value_version: int,
    ) -> None:
        self.keys = keys
        self._kinds = {cls: kind for kind, cls in keys.items()}
        self._values = values
        self._value_version = value_version

    def encode_key(self, key: K) -> bytes:
        """Encode the key of a record, with its kind in front.

        Raises:
            EncodeError: A name has more than 32767 bytes.
        """
        return encode_versioned(key, self._kinds[type(key)])

    def encode_value(self, value: V) -> bytes:
        """Encode the value of a record, with its version in front.

        Raises:
            EncodeError: A field does not fit.
        """
        return encode_versioned(value, self._value_version)

    def decode_key(self, buffer: Buffer) -> K | None:
        """Decode the key of a record.

        Returns:
            The key, or None if the kind is unknown.

        Raises:
            DecodeError: The bytes are not a key.
        """
        cls = self.keys.get(version_of(buffer))
        return None if cls is None else decode_versioned(cls, buffer)

    def decode_value(self, key: K, buffer: Buffer) -> V | UnreadValue:
        """Decode the value of a record with this key.

        Raises:
            DecodeError: The bytes are not a value of that type, or have an unknown version.
        """
        cls = self._values[type(key)]
        return UnreadValue() if cls is UnreadValue else decode_versioned(cls, buffer)
