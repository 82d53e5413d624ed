"""Protobuf files, and descriptors built from them."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kbroker.schemas.core.protobuf_building import descriptor_of

HEAD = 'syntax = "proto3"; package p; '


WHOLE = """
syntax = "proto3";
// about it
package p;
import "google/protobuf/timestamp.proto";
option java_package = "x";
message M {
  reserved 7, 9 to 11; reserved "foo";
  map<string, N> m = 1 [deprecated = true];
  oneof choice { int32 a = 2; N n = 3; }
  optional E e = 4; google.protobuf.Timestamp at = 5;
  message N { repeated sint64 s = 1 [packed = false]; }
  enum E { option allow_alias = true; X = 0; Y = -1; Z = 0; }
}
service S { rpc Go (M) returns (stream M) { option deprecated = true; } }
"""


def built(text: str, texts: dict[str, str] | None = None) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(descriptor_of(text, texts or {}))


def message(body: str, more: str = "") -> str:
    return f"{HEAD} message M {{ {body} }} {more}"
