"""Helpers that decode values with their schema."""

from __future__ import annotations

import json
from typing import Any

from kbroker.schemas.core.framing import Frame
from kbroker.schemas.core.value_readers import Values, values_of
from kbroker.schemas.core.values import AVRO, PROTOBUF, Content

STEPS = 5_000


def values(schema: Any, kind: str = AVRO) -> Values:
    text = schema if isinstance(schema, str) and kind == PROTOBUF else json.dumps(schema)
    return values_of(Content(kind, text), {})


def read(schema: Any, body: bytes, kind: str = AVRO, steps: int = STEPS) -> Any:
    found = values(schema, kind).read(Frame(1, None, body), steps)
    assert json.loads(found.text) == found.document
    return found.document


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


FILE = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
message First {}
message M {
  message Inner { sint32 s = 1; Inner again = 2; }
  enum E { NONE = 0; BIG = 5; ALSO = 5; }
  E e = 1;
  repeated int32 packed = 2;
  map<string, Inner> named = 3;
  oneof one { bool yes = 4; bytes no = 5; }
  google.protobuf.Timestamp at = 6;
  optional int64 maybe = 7;
  Inner inner = 8;
}
"""
