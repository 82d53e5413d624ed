"""Encoder from JSON documents to Protobuf messages, with Google's package."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from kbroker.text.documents import read_json

from .errors import invalid_schema
from .formats import Texts
from .limits import DEPTH_MAX
from .protobuf_building import NAME, descriptor_of
from .value_writing import Mismatch


class ProtobufWriter:
    """Encoder of one message type; implements `value_writers.BodyWriter`.

    A document has Protobuf's JSON form; field names may have the form of the file.

    Args:
        text: Text of the file.
        texts: Texts of imported files by import path.
        message: Full or simple name of the message; None for the first one of the file.

    Raises:
        RegistryError: The file is invalid or has no such message.
    """

    def __init__(self, text: str, texts: Texts, message: str | None) -> None:
        pool = DescriptorPool()
        known: set[str] = set()
        file = FileDescriptorProto.FromString(descriptor_of(text, texts))
        for name, each in texts.items():
            imported = FileDescriptorProto.FromString(descriptor_of(each, texts))
            imported.name = name
            _add(pool, imported, known)
        _add(pool, file, known)
        found = pool.FindFileByName(NAME)
        names = [each.name for each in file.message_type]
        if not names:
            raise invalid_schema("the file has no message")
        descriptor = found.message_types_by_name[names[0]]
        if message is not None:
            descriptor = _message(pool, found.package, message, names)
        self._class = GetMessageClass(descriptor)
        self._indexes = _indexes_data(_indexes(descriptor, file))

    @property
    def is_string(self) -> bool:
        """Implement `BodyWriter`."""
        return False

    def write(self, text: bytes) -> bytes:
        """Implement `BodyWriter`."""
        try:
            document = read_json(text)
        except ValueError as error:
            raise Mismatch(None, "", reason=f"not a JSON document: {error}") from None
        if not isinstance(document, dict):
            raise Mismatch(document, "a JSON object")
        try:
            message = ParseDict(document, self._class(), max_recursion_depth=DEPTH_MAX)
        except ParseError as error:
            raise Mismatch(None, "", reason=str(error).partition("\n")[0]) from None
        return self._indexes + message.SerializeToString(deterministic=True)


def _add(pool: DescriptorPool, file: FileDescriptorProto, known: set[str]) -> None:
    """Add a file and the well-known files that it imports. Raises RegistryError."""
    for name in file.dependency:
        if name not in known and name.startswith("google/protobuf/"):
            _import_google(name)
            imported = FileDescriptorProto()
            Default().FindFileByName(name).CopyToProto(imported)
            known.add(name)
            _add(pool, imported, known)
    known.add(file.name)
    try:
        pool.Add(file)
        pool.FindFileByName(file.name)
    except (TypeError, KeyError) as error:
        raise invalid_schema(f"cannot use the descriptor: {error}") from None


def _import_google(name: str) -> None:
    """Import the module of one of Google's files, which adds the file to the default pool."""
    import importlib

    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        raise invalid_schema(f"import {name} is not available") from None


def _message(pool: DescriptorPool, package: str, name: str, names: list[str]) -> Descriptor:
    for each in (name, f"{package}.{name}"):
        try:
            found = pool.FindMessageTypeByName(each)
        except KeyError:
            continue
        if found.file.name == NAME:
            return found
    raise invalid_schema(f"no message {name!r} (valid: {', '.join(names)}, or nested ones)")


def _indexes(descriptor: Descriptor, file: FileDescriptorProto) -> list[int]:
    """Return the indexes of a message in the file and in the messages around it."""
    parts = []
    outer: Descriptor | None = descriptor
    while outer is not None:
        parts.append(outer.name)
        outer = outer.containing_type
    indexes, listed = [], list(file.message_type)
    for name in reversed(parts):
        index = next(at for at, each in enumerate(listed) if each.name == name)
        indexes.append(index)
        listed = list(listed[index].nested_type)
    return indexes


def _indexes_data(indexes: list[int]) -> bytes:
    """Return message indexes as zigzag varints; a zero byte stands for the first message."""
    if indexes == [0]:
        return b"\0"
    data = bytearray()
    for value in (len(indexes), *indexes):
        left = value << 1
        while left > 0x7F:
            data.append(left & 0x7F | 0x80)
            left >>= 7
        data.append(left)
    return bytes(data)
