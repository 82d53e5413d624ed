"""Protobuf values in Confluent's wire format, to and from columns of structs.

Each value starts with a schema ID and the index path of the message type in its .proto file. Types
come from a schema registry as descriptors, so no compiler and no Spark jar is needed.

    decoder = Decoder("http://registry:8081")
    decoder.decode(value)                                    # a dict

    order = MessageType.latest("http://registry:8081", "orders-value")
    rows.select(from_confluent_protobuf("value", "http://registry:8081", order))
    rows.select(to_confluent_protobuf("order", "http://registry:8081", "orders-value", text))
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kbroker.client.schema_registry import (
    SchemaError,
    SchemaRegistry,
    UndecodableError,
    UnencodableError,
    header_of,
    split_header,
)

if TYPE_CHECKING:
    from google._upb import _message as upb
    from google.protobuf import descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import Message
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    # Protobuf has two implementations of descriptors: in Python and in C.
    Descriptor: TypeAlias = descriptor.Descriptor | upb.Descriptor
    FieldDescriptor: TypeAlias = descriptor.FieldDescriptor | upb.FieldDescriptor

PROTOBUF = "PROTOBUF"
_KNOWN = "google/protobuf/"
# Maximum nesting depth of a message type inside other message types.
_INDEXES_MAX = 64
_VARINT_BYTES_MAX = 10
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


class MessageType:
    """A Protobuf message type with its full name and its index path in the .proto file.

    It can be pickled and sent to Spark's workers.

    Attributes:
        indexes: Index of the message type at each nesting level.
        name: Full name, including the package.
    """

    def __init__(self, files: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Create the message type at an index path.

        Args:
            files: Serialized file descriptors, dependencies first. The last one declares the
                message.
            indexes: Index of the message type at each nesting level.

        Raises:
            SchemaError: The last file declares no message at this index path.
        """
        self._files = tuple(files)
        self.indexes = tuple(indexes)
        self.name = _name_at(self._files[-1], self.indexes)
        self._made: type[Message] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_made": None}

    @classmethod
    def latest(cls, address: str, subject: str, name: str | None = None) -> MessageType:
        """Return a message type of the newest version of a subject.

        Args:
            address: URL of the schema registry.
            subject: Subject to look up.
            name: Full name of the message. By default, the first message of the file.

        Returns:
            The message type.

        Raises:
            SchemaError: The registry does not respond, or the subject or the message does not
                exist.
        """
        registry = SchemaRegistry(address, "serialized")
        return cls._of(registry, registry.latest(subject, PROTOBUF), name)

    @classmethod
    def _of(
        cls, registry: SchemaRegistry, answer: Mapping[str, object], name: str | None
    ) -> MessageType:
        files = _files_of(registry, answer)
        for indexes, found in _messages_of(files[-1]):
            if name in (None, found):
                return cls(files, indexes)
        raise SchemaError(
            f"the schema declares no message {name}" if name else "the schema declares no messages"
        )

    def new(self) -> Message:
        """Return an empty message. Raises SchemaError for invalid descriptors."""
        if self._made is None:
            self._made = _class_of(self._files, self.name)
        return self._made()

    @property
    def descriptor(self) -> Descriptor:
        """Descriptor of the message type. Raises SchemaError for invalid descriptors."""
        return self.new().DESCRIPTOR


class Writer(NamedTuple):
    """Header of a value: the schema ID and the index path of the message type in its file."""

    schema_id: int
    indexes: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.schema_id)


class Decoder:
    """Decoder for Protobuf values.

    Unset fields get Protobuf's defaults. A decoder can be pickled and sent to Spark's workers. It
    is not thread-safe.

    Args:
        address: URL of the schema registry.
        read_as: Type as which all values are read, whichever schema version wrote them. Without it,
            a value has the fields of its writer schema.
    """

    def __init__(self, address: str, read_as: MessageType | None = None) -> None:
        self._address = address
        self._type = read_as
        self._writers: dict[Writer, MessageType] = {}

    def decode(self, value: bytes) -> dict[str, object]:
        """Decode a value.

        Args:
            value: Record value including the header.

        Returns:
            The fields of the message by name.

        Raises:
            UndecodableError: The header or the body is invalid, or the value is another message
                type.
            SchemaError: The registry does not respond, or returns no Protobuf descriptors.
        """
        from google.protobuf.message import DecodeError

        writer, body = split_writer(value)
        written_as = self.schema(writer)
        read_as = self._type or written_as
        if written_as.name != read_as.name:
            raise UndecodableError(f"the value is a {written_as.name}, not a {read_as.name}")
        message = read_as.new()
        try:
            message.ParseFromString(bytes(body))
        except DecodeError as error:
            raise UndecodableError(f"not a {read_as.name} of schema {writer}: {error}") from error
        return _fields_of(message)

    def schema(self, writer: Writer) -> MessageType:
        """Return the message type that a value was written with.

        Raises:
            UnknownSchemaError: The registry has no schema with this ID.
            UndecodableError: The schema is not Protobuf, or its file does not declare the message.
            SchemaError: The registry does not respond, or returns no descriptors.
        """
        if writer not in self._writers:
            registry = SchemaRegistry(self._address, "serialized")
            answer = registry.schema(writer.schema_id, PROTOBUF)
            files = _files_of(registry, answer)
            try:
                self._writers[writer] = MessageType(files, writer.indexes)
            except SchemaError as error:
                raise UndecodableError(f"schema {writer}: {error}") from None
        return self._writers[writer]


def split_writer(value: bytes) -> tuple[Writer, memoryview]:
    """Return the header of a value, parsed, and the message bytes.

    Raises:
        UndecodableError: The value has no such header.
    """
    schema_id, rest = split_header(value)
    indexes, body = _split_indexes(rest)
    return Writer(schema_id, indexes), body


class Encoder:
    """Encoder for values of one registered message type. It can be pickled."""

    def __init__(self, schema_id: int, written_as: MessageType) -> None:
        self._header = header_of(schema_id) + _joined_indexes(written_as.indexes)
        self._type = written_as

    @classmethod
    def registered(
        cls,
        address: str,
        subject: str,
        schema: str,
        name: str | None = None,
        references: Sequence[Mapping[str, object]] = (),
    ) -> Encoder:
        """Register a schema and return an encoder for one of its messages.

        Registering a schema again returns its existing ID.

        Args:
            address: URL of the schema registry.
            subject: Subject to register under.
            schema: Text of the .proto file.
            name: Full name of the message. By default, the first message of the file.
            references: Imports of the file, as the registry's `name`, `subject` and `version`.

        Returns:
            The encoder.

        Raises:
            SchemaError: The registry does not respond or rejects the schema, or the message does
                not exist.
        """
        document = {"schema": schema, "schemaType": PROTOBUF, "references": [*references]}
        schema_id = SchemaRegistry(address).register(subject, document)
        registry = SchemaRegistry(address, "serialized")
        answer = registry.schema(schema_id, PROTOBUF)
        return cls(schema_id, MessageType._of(registry, answer, name))

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """Encode a message; missing fields and None are left unset.

        Args:
            fields: Field values by name.

        Returns:
            The value, with the header.

        Raises:
            UnencodableError: The fields do not match the message type.
        """
        message = self._type.new()
        try:
            _fill(message, fields)
            body: bytes = message.SerializeToString()
        except Exception as error:  # protobuf has no common exception class
            raise UnencodableError(
                f"the fields do not match {self._type.name}: {error!r}"
            ) from error
        return self._header + body


def from_confluent_protobuf(
    column: Column | str, address: str, read_as: MessageType, *, mode: str = "FAILFAST"
) -> Column:
    """Return a column of structs decoded from Protobuf values; null values stay null.

    Decoding runs in Python workers.

    Args:
        column: Binary column with values in Confluent's wire format.
        address: URL of the schema registry.
        read_as: Type as which all values are read; it determines the fields of the structs.
        mode: As in Spark's ``from_protobuf``: "FAILFAST" fails the query at a value that cannot be
            decoded, "PERMISSIVE" returns null for it.

    Returns:
        The column of structs.

    Raises:
        SchemaError: `read_as` contains a type without a Spark equivalent.
        ValueError: The mode is unknown.
    """
    from .value_columns import decoded_column

    decoder = Decoder(address, read_as)
    return decoded_column(column, decoder.decode, spark_type(read_as), mode)


def to_confluent_protobuf(
    column: Column | str,
    address: str,
    subject: str,
    schema: str,
    name: str | None = None,
    references: Sequence[Mapping[str, object]] = (),
) -> Column:
    """Return a column of Protobuf values encoded from structs; null structs stay null.

    The schema is registered when this function is called, not by the Python workers that encode the
    messages. A struct that does not match the message type fails the query.

    Args:
        column: Column of structs that have the fields of the message.
        address: URL of the schema registry.
        subject: Subject to register under.
        schema: Text of the .proto file.
        name: Full name of the message. By default, the first message of the file.
        references: Imports of the file, as the registry's `name`, `subject` and `version`.

    Returns:
        The binary column, in Confluent's wire format.

    Raises:
        SchemaError: The registry does not respond or rejects the schema, or the message does not
            exist.
    """
    from .value_columns import encoded_column

    encoder = Encoder.registered(address, subject, schema, name, references)
    return encoded_column(column, encoder.encode)


def spark_type(message: MessageType) -> DataType:
    """Return the Spark type of a message type.

    The mapping follows Spark's ``from_protobuf``: enums become their names, Timestamp and Duration
    become Spark's timestamp and day-time interval. Unlike there, unsigned integers become the next
    larger type, so that no value turns negative.

    Raises:
        SchemaError: The message type is recursive, or its descriptors are invalid.
    """
    return _struct(message.descriptor, ())


# -- files


def _files_of(registry: SchemaRegistry, answer: Mapping[str, object]) -> list[bytes]:
    """Return the serialized descriptors of a schema and its imports, dependencies first."""
    files: dict[str, bytes] = {}
    named = [*registry.referred(answer), ("the schema", answer)]
    for name, each in named:
        file = _file_in(each)
        _add_known(files, file)
        file.name = name
        files[name] = file.SerializeToString()
    return [*files.values()]


def _file_in(answer: Mapping[str, object]) -> FileDescriptorProto:
    """Return the file descriptor in a response to `format=serialized`. Raises SchemaError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(
            base64.b64decode(str(answer.get("schema")), validate=True)
        )
    except (binascii.Error, DecodeError):
        raise SchemaError("the schema registry returned no Protobuf descriptors") from None


def _add_known(files: dict[str, bytes], file: FileDescriptorProto) -> None:
    """Add the imports of a file that belong to Protobuf itself, with their own imports."""
    for path in file.dependency:
        if path.startswith(_KNOWN) and path not in files:
            data = _known_file(path)
            _add_known(files, type(file).FromString(data))
            files[path] = data


def _known_file(path: str) -> bytes:
    """Return the serialized descriptor of a bundled file, such as google/protobuf/any.proto."""
    name = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        data: bytes = importlib.import_module(name).DESCRIPTOR.serialized_pb
    except ImportError:
        raise SchemaError(f"import {path} is not part of Protobuf") from None
    return data


def _messages_of(file: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the index path and name of all messages of a file, outer messages first."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found = FileDescriptorProto.FromString(file)
    scope: list[tuple[tuple[int, ...], str, Sequence[DescriptorProto]]] = [
        ((), found.package, found.message_type)
    ]
    for place, outer, messages in scope:
        declared = [each for each in messages if not each.options.map_entry]
        for index, each in enumerate(declared):
            inner, name = (*place, index), f"{outer}.{each.name}".lstrip(".")
            yield inner, name
            scope.append((inner, name, each.nested_type))


def _name_at(file: bytes, indexes: tuple[int, ...]) -> str:
    """Return the name of the message at an index path of a file. Raises SchemaError."""
    for place, name in _messages_of(file):
        if place == indexes:
            return name
    raise SchemaError(f"the file declares no message at index {'/'.join(map(str, indexes))}")


def _class_of(files: Sequence[bytes], name: str) -> type[Message]:
    """Return the Python class of a message type. Raises SchemaError."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file)
        return GetMessageClass(pool.FindMessageTypeByName(name))
    except (TypeError, KeyError) as error:
        raise SchemaError(f"cannot load message {name}: {error}") from error


# -- index paths


def _split_indexes(data: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Return the index path and the bytes after it; a single zero means the first message."""
    count, data = _split_number(data)
    if not 0 <= count <= _INDEXES_MAX:
        raise UndecodableError(
            f"message index path has {count} levels (valid: 0 to {_INDEXES_MAX})"
        )
    indexes = []
    for _ in range(count):
        index, data = _split_number(data)
        indexes.append(index)
    return tuple(indexes) or (0,), data


def _split_number(data: memoryview) -> tuple[int, memoryview]:
    """Decode a zigzag varint and return it with the remaining bytes."""
    found = 0
    for at, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return found >> 1 ^ -(found & 1), data[at + 1 :]
    raise UndecodableError("the message index path is truncated")


def _joined_indexes(indexes: tuple[int, ...]) -> bytes:
    """Encode an index path: the reverse of `_split_indexes`."""
    numbers = () if indexes == (0,) else indexes
    return b"".join(_number(each) for each in (len(numbers), *numbers))


def _number(value: int) -> bytes:
    left, data = value << 1, bytearray()
    while left >= 0x80:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*data, left])


# -- values


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # Protobuf 5; later versions have no labels


def _entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """Return the key and value fields of a map field, or None for other fields."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def _fields_of(message: Message) -> dict[str, object]:
    """Return the fields of a message as the values that Spark expects."""
    return {field.name: _value_of(message, field) for field in message.DESCRIPTOR.fields}


def _value_of(message: Message, field: FieldDescriptor) -> object:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if entry := _entry_of(field):
        key_field, value_field = entry
        return {_one(key_field, key): _one(value_field, value[key]) for key in value}
    if _is_repeated(field):
        return [_one(field, each) for each in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> object:
    if field.message_type is not None:
        return _message_value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value


def _message_value(message: Any) -> object:
    name = message.DESCRIPTOR.full_name
    if name == _TIMESTAMP:
        return message.ToDatetime(UTC)
    return message.ToTimedelta() if name == _DURATION else _fields_of(message)


def _fill(message: Message, fields: Mapping[str, Any]) -> None:
    """Set the fields of a message. Raises Protobuf's errors, and KeyError for an unknown field."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if value is None:
            continue
        if entry := _entry_of(field):
            _fill_map(getattr(message, name), *entry, value)
        elif _is_repeated(field):
            _fill_list(getattr(message, name), field, value)
        elif field.message_type is not None:
            _fill_message(getattr(message, name), value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill_map(
    target: Any,
    key_field: FieldDescriptor,
    value_field: FieldDescriptor,
    values: Mapping[object, object],
) -> None:
    for key, value in values.items():
        made = _scalar(key_field, key)
        if value_field.message_type is None:
            target[made] = _scalar(value_field, value)
        else:
            _fill_message(target[made], value)


def _fill_list(target: Any, field: FieldDescriptor, values: Sequence[object]) -> None:
    for value in values:
        if field.message_type is None:
            target.append(_scalar(field, value))
        else:
            _fill_message(target.add(), value)


def _fill_message(message: Any, value: Any) -> None:
    if isinstance(value, datetime):
        message.FromDatetime(value.astimezone(UTC))  # Spark passes naive local times
    elif isinstance(value, timedelta):
        message.FromTimedelta(value)
    else:
        message.SetInParent()  # marks the message as set even if no field is
        _fill(message, value)


def _scalar(field: FieldDescriptor, value: object) -> object:
    if field.enum_type is not None and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number
    return int(value) if isinstance(value, Decimal) else value


# -- types


def _struct(message: Descriptor, outer: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import StructField, StructType

    if message.full_name in outer:
        raise SchemaError(f"message {message.full_name} is recursive; Spark has no equivalent type")
    inside = (*outer, message.full_name)
    return StructType([StructField(each.name, _type_of(each, inside)) for each in message.fields])


def _type_of(field: FieldDescriptor, outer: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if entry := _entry_of(field):
        return MapType(*(_type_of_one(each, outer) for each in entry))
    one = _type_of_one(field, outer)
    return ArrayType(one) if _is_repeated(field) else one


def _type_of_one(field: FieldDescriptor, outer: tuple[str, ...]) -> DataType:
    from pyspark.sql import types

    if field.message_type is None:
        return {
            field.CPPTYPE_INT32: types.IntegerType(),
            field.CPPTYPE_UINT32: types.LongType(),
            field.CPPTYPE_INT64: types.LongType(),
            field.CPPTYPE_UINT64: types.DecimalType(20, 0),
            field.CPPTYPE_FLOAT: types.FloatType(),
            field.CPPTYPE_DOUBLE: types.DoubleType(),
            field.CPPTYPE_BOOL: types.BooleanType(),
            field.CPPTYPE_ENUM: types.StringType(),
        }.get(field.cpp_type) or (
            types.BinaryType() if field.type == field.TYPE_BYTES else types.StringType()
        )
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return types.TimestampType()
    return types.DayTimeIntervalType() if name == _DURATION else _struct(field.message_type, outer)
