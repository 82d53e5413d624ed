"""The form of keys and values in the logs of coordinators: an int16 version and a struct in it."""

from __future__ import annotations

import struct
from typing import TypeVar

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
    return _VERSION.pack(version) + encode_bytes(message, version)


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
