"""Messages of Protobuf as Confluent's serializers write them, to and from columns of structs.

Before each message stand a schema's number and the place of the message in its file. Types come from a
registry, as descriptors: no compiler is needed, and no jar of Spark's.

    decoder = Decoder("http://registry:8081")
    decoder.decode(value)                                    # a dict

    order = MessageType.latest("http://registry:8081", "orders-value")
    rows.select(from_confluent_protobuf("value", "http://registry:8081", order))    # a column of structs
    rows.select(to_confluent_protobuf("order", "http://registry:8081", "orders-value", text))   # and back
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .schema_registry import (
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

    # Protobuf implements its descriptors twice: in Python and in C.
    Descriptor: TypeAlias = descriptor.Descriptor | upb.Descriptor
    FieldDescriptor: TypeAlias = descriptor.FieldDescriptor | upb.FieldDescriptor

PROTOBUF = "PROTOBUF"
_KNOWN = "google/protobuf/"
_INDEXES_MAX = 64
"""How deep in other messages the one of a value may be declared."""
_VARINT_BYTES_MAX = 10
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


class MessageType:
    """A message of a file of Protobuf: `name` with its package, and where it is declared.

    It can be sent to Spark's workers.
    """

    def __init__(self, files: Sequence[bytes], indexes: Sequence[int]) -> None:
        """`files` are descriptors, each after those that it imports; the last one declares the message, at
        a place among those that it is declared with. Raises SchemaError.
        """
        self._files = tuple(files)
        self.indexes = tuple(indexes)
        self.name = _name_at(self._files[-1], self.indexes)
        self._made: type[Message] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_made": None}

    @classmethod
    def latest(cls, address: str, subject: str, name: str | None = None) -> MessageType:
        """A message of the newest version of a subject: of that name, with its package, or the first.

        Raises:
            SchemaError: the registry does not answer, or has no such subject, or no such message in it.
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
        raise SchemaError(f"the schema declares no message {name or 'at all'}")

    def new(self) -> Message:
        """An empty message. Raises SchemaError when its files are none."""
        if self._made is None:
            self._made = _class_of(self._files, self.name)
        return self._made()

    @property
    def descriptor(self) -> Descriptor:
        """What is declared in the message. Raises SchemaError when its files are none."""
        return self.new().DESCRIPTOR


class Writer(NamedTuple):
    """What a value was written with: a schema's number, and the place of the message in its file."""

    schema_id: int
    indexes: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.schema_id)


class Decoder:
    """Decodes messages.

    Parameters: `read_as` is the type that every message is read as, by whichever version of its schema it
    was written; without it a message has the fields that its writer knew. Fields that were not written
    have Protobuf's defaults.

    A decoder can be sent to Spark's workers. It is not thread-safe.
    """

    def __init__(self, address: str, read_as: MessageType | None = None) -> None:
        self._address = address
        self._type = read_as
        self._writers: dict[Writer, MessageType] = {}

    def decode(self, value: bytes) -> dict[str, object]:
        """The fields of a message.

        Raises:
            UndecodableError: the header or the rest is wrong, or it is another message.
            SchemaError: the registry does not answer, or what it has is no file of Protobuf.
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
        """What a value was written as.

        Raises:
            UnknownSchemaError: there is none of this number.
            UndecodableError: its file does not declare the message, or is none of Protobuf.
            SchemaError: the registry does not answer, or hands out no descriptors.
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
    """What a value was written with, and the message.

    Raises:
        UndecodableError: the value has no such header.
    """
    schema_id, rest = split_header(value)
    indexes, body = _split_indexes(rest)
    return Writer(schema_id, indexes), body


class Encoder:
    """Encodes messages of one type, whose schema has a number. It can be sent to Spark's workers."""

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
        """With the number that a registry gives a file, or has given it before.

        Parameters: `schema` is the text of the file, `name` that of the message in it, with its package
        (else it is the first), `references` what it imports, as the registry has them: `name`,
        `subject` and `version`.

        Raises:
            SchemaError: the registry does not answer or refuses it, or there is no such message.
        """
        document = {"schema": schema, "schemaType": PROTOBUF, "references": [*references]}
        schema_id = SchemaRegistry(address).register(subject, document)
        registry = SchemaRegistry(address, "serialized")
        answer = registry.schema(schema_id, PROTOBUF)
        return cls(schema_id, MessageType._of(registry, answer, name))

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """The message of these fields; those that are null or not there are not written.

        Raises:
            UnencodableError: they do not fit the message.
        """
        message = self._type.new()
        try:
            _fill(message, fields)
            body: bytes = message.SerializeToString()
        except Exception as error:  # protobuf raises whatever wrong values lead to
            raise UnencodableError(f"these fields are no {self._type.name}: {error!r}") from error
        return self._header + body


def from_confluent_protobuf(
    column: Column | str, address: str, read_as: MessageType, *, mode: str = "FAILFAST"
) -> Column:
    """A column of structs with the fields of `read_as`; null where `column` is null.

    `mode` is as in Spark's ``from_protobuf``: FAILFAST lets the query fail at a value that cannot be
    decoded, PERMISSIVE makes it null. Decoding runs in Python workers.

    Raises:
        SchemaError: `read_as` has a type that Spark has not.
        ValueError: an unknown mode.
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
    """A column of values for a topic, of structs that have the fields of a message; null where `column`
    is null. For `schema`, `name` and `references` see `Encoder.registered`.

    The file is registered under `subject` once, when this is called, and not by Python's workers, in
    which messages are encoded. A struct that does not fit the message fails the query.

    Raises:
        SchemaError: the registry does not answer or refuses it, or there is no such message.
    """
    from .value_columns import encoded_column

    encoder = Encoder.registered(address, subject, schema, name, references)
    return encoded_column(column, encoder.encode)


def spark_type(message: MessageType) -> DataType:
    """The Spark type of a message.

    As Spark's ``from_protobuf`` has it: enums are their names, Timestamp and Duration are what Spark calls
    so; but unsigned numbers are of the next larger type, so that none becomes negative.

    Raises:
        SchemaError: it has a message in itself, or its files are none.
    """
    return _struct(message.descriptor, ())


# -- files


def _files_of(registry: SchemaRegistry, answer: Mapping[str, object]) -> list[bytes]:
    """The descriptors of a schema and of what it imports, each after those that it imports itself."""
    files: dict[str, bytes] = {}
    named = [*registry.referred(answer), ("the schema", answer)]
    for name, each in named:
        file = _file_in(each)
        _add_known(files, file)
        file.name = name
        files[name] = file.SerializeToString()
    return [*files.values()]


def _file_in(answer: Mapping[str, object]) -> FileDescriptorProto:
    """A file as a registry hands it out with `format=serialized`. Raises SchemaError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(
            base64.b64decode(str(answer.get("schema")), validate=True)
        )
    except (binascii.Error, DecodeError):
        raise SchemaError("the schema registry hands out no descriptors of Protobuf") from None


def _add_known(files: dict[str, bytes], file: FileDescriptorProto) -> None:
    """Add what a file imports of Protobuf itself, and what that imports."""
    for path in file.dependency:
        if path.startswith(_KNOWN) and path not in files:
            data = _known_file(path)
            _add_known(files, type(file).FromString(data))
            files[path] = data


def _known_file(path: str) -> bytes:
    """A file that comes with Protobuf, as google/protobuf/timestamp.proto."""
    name = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        data: bytes = importlib.import_module(name).DESCRIPTOR.serialized_pb
    except ImportError:
        raise SchemaError(f"Protobuf has no {path}") from None
    return data


def _messages_of(file: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
    """All messages of a file, each with its place and its name: those in others behind those."""
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
    """The name of the message at a place of a file. Raises SchemaError."""
    for place, name in _messages_of(file):
        if place == indexes:
            return name
    raise SchemaError(f"its file declares no message at {'/'.join(map(str, indexes))}")


def _class_of(files: Sequence[bytes], name: str) -> type[Message]:
    """The class of a message. Raises SchemaError."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file)
        return GetMessageClass(pool.FindMessageTypeByName(name))
    except (TypeError, KeyError) as error:
        raise SchemaError(f"{name} cannot be used: {error}") from error


# -- places in files


def _split_indexes(data: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """The place of a message in its file, and the message: a zero alone stands for the first one."""
    count, data = _split_number(data)
    if not 0 <= count <= _INDEXES_MAX:
        raise UndecodableError(f"a message at a depth of {count} in its file")
    indexes = []
    for _ in range(count):
        index, data = _split_number(data)
        indexes.append(index)
    return tuple(indexes) or (0,), data


def _split_number(data: memoryview) -> tuple[int, memoryview]:
    """A number in Protobuf's zigzag coding."""
    found = 0
    for at, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return found >> 1 ^ -(found & 1), data[at + 1 :]
    raise UndecodableError("the place of the message in its file is cut off")


def _joined_indexes(indexes: tuple[int, ...]) -> bytes:
    """What `_split_indexes` takes apart."""
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
    return bool(field.label == field.LABEL_REPEATED)  # of Protobuf 5, later ones have no labels


def _entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """The key and the value of a field that is a map."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def _fields_of(message: Message) -> dict[str, object]:
    """What Spark takes for a message."""
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
    """Give a message its fields. Raises what Protobuf raises, and KeyError for a field that it has not."""
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
        message.FromDatetime(value.astimezone(UTC))  # Spark hands out the time of the machine
    elif isinstance(value, timedelta):
        message.FromTimedelta(value)
    else:
        message.SetInParent()  # it is there, also with no field
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
        raise SchemaError(f"{message.full_name} is in itself: Spark has no type for it")
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
