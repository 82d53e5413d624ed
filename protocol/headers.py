"""Request and response headers, and complete frames around a message.

Request header version 2 and response header version 1 add tagged fields; an API uses them from its
first flexible version on. ApiVersions is the exception: its response always has header version 0,
so that a client can read it before it knows the broker's versions (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple, TypeVar

from . import messages
from .api_keys import ApiKey
from .compile import DETACHED_SIZE, Encoded, Part, decode, encode_after, encode_in_slices
from .primitives import Buffer, DecodeError, skip_tags
from .schema import Message

_new = tuple.__new__  # takes half the time of calling the class
_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")
_FLEXIBLE_RESPONSE = struct.Struct(">iix")  # no tagged field
_SIZE = struct.Struct(">i")
_KEYS = frozenset(map(int, ApiKey))

M = TypeVar("M")


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Decode the header of a request frame (without its length).

    The tagged fields of a flexible version are skipped if the API key and version are known;
    otherwise only the client ID is read.

    Returns:
        The header, and the position of the body.

    Raises:
        DecodeError: The frame is too short or malformed.
    """
    try:
        key, version, correlation_id, size = _REQUEST.unpack_from(frame)
        position = _REQUEST.size + max(size, 0)
        if size < -1 or position > len(frame):
            raise DecodeError(f"client id of {size} bytes")
        # Not compact even in header version 2, so that it is readable for unknown versions.
        client_id = None if size < 0 else str(frame[_REQUEST.size : position], "utf-8")
        if version in _flexible_versions(key):
            count = frame[position]
            position += 1
            if count:
                position = skip_tags(frame, position, count)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"request header: {error}") from error
    return _new(RequestHeader, (key, version, correlation_id, client_id)), position


def encode_response(correlation_id: int, key: int, version: int, message: object) -> list[Part]:
    """Encode a response frame (length, header and message) as parts to send in order.

    Raises:
        EncodeError: As in `compile.encode`.
    """
    header = _FLEXIBLE_RESPONSE if version in _flexible_responses(key) else _RESPONSE
    if isinstance(message, Encoded):
        # Prepared responses are small and frequent: this takes half the time of the general path.
        body = message.body
        size = header.size - _SIZE.size + len(body)
        if size < DETACHED_SIZE:
            return [header.pack(size, correlation_id) + body]
    out = bytearray(header.pack(0, correlation_id))
    return _write_frame_size(out, encode_after(out, message, version))


def encode_response_in_slices(
    correlation_id: int, key: int, version: int, message: object
) -> Generator[None, None, list[Part]]:
    """Encode a response frame in a generator that pauses periodically and returns the parts."""
    header = _FLEXIBLE_RESPONSE if version in _flexible_responses(key) else _RESPONSE
    out = bytearray(header.pack(0, correlation_id))
    return _write_frame_size(out, (yield from encode_in_slices(out, message, version)))


def encode_request(
    key: int, version: int, correlation_id: int, client_id: str | None, message: object
) -> list[Part]:
    """Encode a request frame (length, header and message) as parts to send in order.

    Raises:
        EncodeError: As in `compile.encode`.
    """
    raw = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(raw)
    out = bytearray(_SIZE.size)
    out += _REQUEST.pack(key, version, correlation_id, size)
    out += raw
    if version in _flexible_versions(key):
        out.append(0)
    return _write_frame_size(out, encode_after(out, message, version))


def decode_response(cls: type[M], frame: Buffer, version: int) -> tuple[int, M]:
    """Decode a response frame (without its length) into its correlation ID and message.

    Args:
        cls: Class of the response.
        frame: The frame.
        version: API version of the request.

    Raises:
        DecodeError: The frame is malformed.
    """
    assert issubclass(cls, Message)
    try:
        (correlation_id,) = _SIZE.unpack_from(frame)
        position = _SIZE.size
        if cls.KEY != ApiKey.API_VERSIONS and cls.is_flexible(version):
            position = skip_tags(frame, position + 1, frame[position])
    except (struct.error, IndexError) as error:
        raise DecodeError(f"response header: {error}") from error
    message, _ = decode(cls, frame, version, position)
    return correlation_id, message


def _write_frame_size(header: bytearray, parts: list[Part]) -> list[Part]:
    """Write the length of a frame into its header, the first part."""
    size = len(header) if len(parts) == 1 else sum(map(len, parts))
    _SIZE.pack_into(header, 0, size - _SIZE.size)
    return parts


@lru_cache(maxsize=256)
def _flexible_versions(key: int) -> range:
    """Return the declared versions of an API key that have tagged fields in their headers."""
    if key not in _KEYS:
        return range(0)
    request = messages.request_class(key)
    first, versions = request.FLEXIBLE, request.VERSIONS
    return range(0) if first is None else range(max(first, versions.start), versions.stop)


@lru_cache(maxsize=256)
def _flexible_responses(key: int) -> range:
    """Return the versions of an API key whose responses have tagged fields in their headers."""
    return range(0) if key == ApiKey.API_VERSIONS else _flexible_versions(key)
