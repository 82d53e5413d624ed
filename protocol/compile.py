"""Compiler from message declarations to one flat function per message, version and direction.

The functions are generated as Python source on first use and stored on the class. Adjacent
fixed-width fields, together with a following one-byte length, use a single `struct` call; nested
structs and arrays become loops in the same function. So a request costs about one call per
variable-length field, without version checks at run time.

Each function also exists as a generator that pauses after some array elements, for messages that
would block an event loop: `decode_in_slices` and `encode_in_slices`.

`source` returns the generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from . import primitives
from .primitives import MAX_STRING_BYTES, Buffer, DecodeError, EncodeError
from .schema import Field, Message, Struct, fields

__all__ = [
    "DecodeError",
    "EncodeError",
    "Encoded",
    "Part",
    "TooManyElementsError",
    "decode",
    "decode_counted",
    "decode_in_slices",
    "encode",
    "encode_bytes",
    "encode_for_many",
    "encode_in_slices",
    "source",
]

# One part of an encoded message: bytes, or a deferred range that the caller resolves.
Part: TypeAlias = Buffer | Sized

# Maximum number of array elements of one message, over all its arrays.
OBJECTS_MAX = 1_000_000

# Number of array elements that a generator processes between two pauses (well below 1 ms).
SLICE_OBJECTS = 256

# Suffix of the names of fields that contain error messages.
ERROR_MESSAGE = "error_message"

# Maximum bytes of an error message; longer ones are truncated, because they may quote client data.
ERROR_MESSAGE_BYTES_MAX = 4096

# End of a truncated error message.
TRUNCATION_MARK = b"..."

# Records of at least this many bytes are passed on without a copy; smaller ones are copied.
DETACHED_SIZE = 4096
M = TypeVar("M")


def encode(message: object, version: int) -> list[Part]:
    """Encode a message.

    Fields that `version` does not contain are skipped. None in a field that is not nullable in
    `version` is encoded as an empty string or array.

    Returns:
        Parts to send in order: adjacent bytes are joined; large records and deferred ranges are the
        caller's objects.

    Raises:
        EncodeError: A value does not fit its field, or the version is not declared.
    """
    return encode_after(bytearray(), message, version)


def encode_after(out: bytearray, message: object, version: int) -> list[Part]:
    """Encode a message after `out`, which may contain a header and becomes the first part."""
    parts: list[Part] = [out]
    assert isinstance(message, Message)
    function = message.ENCODERS.get(version) or _compile(_Encoder, type(message), version)
    try:
        function(message, out, parts)
    except _NOT_ENCODED as error:
        raise EncodeError(f"{type(message).__name__} version {version}: {error}") from error
    if not parts[-1]:
        del parts[-1]
    return parts


def encode_in_slices(
    out: bytearray, message: object, version: int
) -> Generator[None, None, list[Part]]:
    """Encode as `encode_after`, in a generator that pauses periodically and returns the parts.

    The message must not change in the meantime.
    """
    parts: list[Part] = [out]
    assert isinstance(message, Message)
    function = message.SLICED_ENCODERS.get(version) or _compile(
        _Encoder, type(message), version, sliced=True
    )
    try:
        yield from function(message, out, parts)
    except _NOT_ENCODED as error:
        raise EncodeError(f"{type(message).__name__} version {version}: {error}") from error
    if not parts[-1]:
        del parts[-1]
    return parts


def encode_bytes(message: object, version: int, before: bytes = b"") -> bytes:
    """Encode a message without deferred ranges into one `bytes`, after the prefix `before`.

    Raises:
        EncodeError: As in `encode`, or there is a deferred range.
    """
    parts = encode_after(bytearray(before), message, version)
    try:
        return b"".join(parts)  # type: ignore[arg-type]  # a range makes it raise
    except TypeError as error:
        raise EncodeError("a deferred range has no bytes here") from error


def decode(cls: type[M], buffer: Buffer, version: int, offset: int = 0) -> tuple[M, int]:
    """Decode a message.

    Args:
        cls: Class of the message.
        buffer: Contains the message from `offset` on, possibly followed by other bytes.
        version: Version of the message.
        offset: Position of the message.

    Returns:
        The message, and the position after it. `Records` fields are views of `buffer`; all other
        values are copied.

    Raises:
        DecodeError: The bytes are malformed, or the version is not declared.
    """
    message, end, _ = decode_counted(cls, buffer, version, offset)
    return message, end


def decode_counted(
    cls: type[M], buffer: Buffer, version: int, offset: int = 0, objects_max: int = OBJECTS_MAX
) -> tuple[M, int, int]:
    """Decode as `decode`, and also return the number of array elements of the message.

    Raises TooManyElementsError if there are more than `objects_max`.
    """
    assert issubclass(cls, Message)
    function = cls.DECODERS.get(version) or _compile(_Decoder, cls, version)
    try:
        message, end, left = function(buffer, offset, len(buffer), objects_max)
    except _NOT_DECODED as error:
        raise DecodeError(f"{cls.__name__} version {version}: {error}") from error
    return message, end, objects_max - left


def decode_in_slices(
    cls: type[M], buffer: Buffer, version: int, offset: int = 0, *, objects_max: int = OBJECTS_MAX
) -> Generator[None, None, tuple[M, int, int]]:
    """Decode as `decode_counted`, in a generator that pauses periodically and returns the result.

    `objects_max` is the maximum number of array elements of the message, over all its arrays.
    """
    assert issubclass(cls, Message)
    function = cls.SLICED_DECODERS.get(version) or _compile(_Decoder, cls, version, sliced=True)
    try:
        message, end, left = yield from function(buffer, offset, len(buffer), objects_max)
    except _NOT_DECODED as error:
        raise DecodeError(f"{cls.__name__} version {version}: {error}") from error
    return message, end, objects_max - left


class TooManyElementsError(DecodeError):
    """Too many array elements in a message."""


class Encoded(Message):
    """A message that is already encoded in the version to send, because many clients get it.

    `body` contains a message of `cls` in `version`. See `encode_for_many`.
    """

    __slots__ = ("body", "cls", "version")

    VERSIONS = range(32)

    def __init__(self, cls: type[Message], version: int, body: bytes) -> None:
        self.cls = cls
        self.version = version
        self.body = body

    def decoded(self) -> Message:
        """Decode the message into a new, mutable object."""
        return decode(self.cls, self.body, self.version)[0]


def with_throttle_time(message: Message, milliseconds: int) -> Message:
    """Return a response with the throttle time of its client (KIP-219), if its version has it.

    An `Encoded` response is not changed, because other clients may get it too.
    """
    if isinstance(message, Encoded):
        first = next(each for each in fields(message.cls) if each.present(message.version))
        if first.name == "throttle_time_ms":
            body = struct.pack(">i", milliseconds) + message.body[4:]
            return Encoded(message.cls, message.version, body)
        message = message.decoded()
    if "throttle_time_ms" in message.DEFAULTS:
        message.throttle_time_ms = milliseconds  # type: ignore[attr-defined]
    return message


def _append_body(message: Encoded, out: bytearray, parts: list[Part]) -> None:
    parts.append(message.body)


def _append_body_in_slices(
    message: Encoded, out: bytearray, parts: list[Part]
) -> Generator[None, None, None]:
    yield
    parts.append(message.body)


def encode_for_many(message: object, version: int) -> Generator[None, None, Encoded]:
    """Encode a message without deferred ranges that is sent often.

    This is a generator that pauses periodically and returns the encoded message.
    """
    assert isinstance(message, Message)
    parts = yield from encode_in_slices(bytearray(), message, version)
    return Encoded(type(message), version, b"".join(parts))  # type: ignore[arg-type]


Encoded.ENCODERS = dict.fromkeys(Encoded.VERSIONS, _append_body)
Encoded.SLICED_ENCODERS = dict.fromkeys(Encoded.VERSIONS, _append_body_in_slices)


# Exceptions of the generated functions for invalid values and bytes.
_NOT_ENCODED = (struct.error, UnicodeEncodeError, AttributeError, TypeError)
_NOT_DECODED = (struct.error, IndexError, UnicodeDecodeError)


def source(cls: type, version: int, direction: str) -> str:
    """Return the generated code of a codec, for debugging; `direction` is "encode" or "decode"."""
    assert issubclass(cls, Message)
    return (_Encoder if direction == "encode" else _Decoder)(cls, version).text()


def _compile(
    kind: type[_Encoder | _Decoder], cls: type[Message], version: int, *, sliced: bool = False
) -> Any:
    if version not in cls.VERSIONS:
        raise kind.error(f"{cls.__name__} has no version {version}")
    function = kind(cls, version, sliced=sliced).function()
    if kind is _Encoder:
        known = cls.SLICED_ENCODERS if sliced else cls.ENCODERS
    else:
        known = cls.SLICED_DECODERS if sliced else cls.DECODERS
    known[version] = function
    return function


class _Writer:
    """Collects the lines of one function, and joins fixed-width fields into runs."""

    error: type[ValueError]

    def __init__(self, cls: type[Message], version: int, *, sliced: bool = False) -> None:
        self.title = f"{type(self).__name__} {cls.__name__} {version}"
        self.version = version
        self.sliced = sliced
        self.flexible = cls.is_flexible(version)
        self.lines: list[str] = []
        self.indent = 1
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str]] = []
        self.counter = 0

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def function(self) -> Any:
        code = compile(self.text(), f"<{self.title}>", "exec")
        exec(code, self.names)  # noqa: S102
        return self.names["codec"]

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def begin_slices(self) -> None:
        """Make the function a generator, even if it has no array."""
        if self.sliced:
            self.line(f"due = {SLICE_OBJECTS}")
            self.line("yield")

    @contextmanager
    def loop(self, header: str) -> Iterator[None]:
        """Write a loop over array elements; the elements of all arrays count for the next pause."""
        self.line(header)
        self.indent += 1
        yield
        if self.sliced:
            self.line("due -= 1")
            self.line("if not due:")
            self.line(f"    due = {SLICE_OBJECTS}")
            self.line("    yield")
        self.indent -= 1

    def local(self, stem: str) -> str:
        """Return a unique variable name."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def name(self, stem: str, value: Any) -> str:
        """Make `value` available to the function, and return its name there."""
        for known, other in self.names.items():
            if other is value:
                return known
        name = f"{stem}_{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, method: str, letters: str) -> str:
        name = f"{method}_{letters.replace('?', 'f')}"
        self.names.setdefault(name, getattr(struct.Struct(">" + letters), method))
        return name


class _Decoder(_Writer):
    """Generates `codec(buf, pos, end, left) -> (message, position after it, left)`.

    `left` is the number of array elements that the message may still have. Each method that is
    named after a type adds the code that decodes a value of this type.
    """

    error = DecodeError

    def __init__(self, cls: type[Message], version: int, *, sliced: bool = False) -> None:
        super().__init__(cls, version, sliced=sliced)
        self.names.update(
            new=object.__new__,
            uuid=primitives.uuid_from,
            finish=primitives.finish_uvarint,
            uvarint=primitives.read_uvarint,
            skip_tags=primitives.skip_tags,
            unpack_from=struct.unpack_from,
            DecodeError=DecodeError,
            reject=_reject,
            reject_count=_reject_count,
        )
        self.lines.append("def codec(buf, pos, end, left):")
        self.begin_slices()
        message = self.object(cls)
        self.flush()
        self.line("if pos > end:")
        self.line("    raise DecodeError('message ends too early')")
        self.line(f"return {message}, pos, left")

    # -- runs -------------------------------------------------------------------------------

    def read(self, letter: str, target: str) -> None:
        """Add a fixed-width value to the current run."""
        self.run.append((letter, target))

    def flush(self) -> None:
        """Read the current run."""
        run, self.run = self.run, []
        if not run:
            return
        letters = "".join(letter for letter, _ in run)
        if letters == "B":
            self.line(f"{run[0][1]} = buf[pos]")
        else:
            targets = ", ".join(target for _, target in run) + ("," if len(run) == 1 else "")
            self.line(f"{targets} = {self.packer('unpack_from', letters)}(buf, pos)")
        self.line(f"pos += {struct.calcsize('>' + letters)}")
        for letter, target in run:
            if letter == "16s":
                self.line(f"{target} = uuid({target})")

    def length(self, letter: str) -> str:
        """Read a length or count; return the variable that contains it, -1 for null."""
        n = self.local("n")
        if self.flexible:
            self.read("B", n)
            self.flush()
            self.line(f"if {n} > 127:")
            self.line(f"    {n}, pos = finish(buf, pos, {n})")
            self.line(f"{n} -= 1")
        else:
            self.read(letter, n)
            self.flush()
        return n

    # -- fields -----------------------------------------------------------------------------

    def object(self, cls: type[Struct]) -> str:
        """Decode one struct into a new local variable."""
        this = self.local("o")
        self.line(f"{this} = new({self.name(cls.__name__, cls)})")
        tagged = []
        for field in fields(cls):
            target = f"{this}.{field.name}"
            if not field.present(self.version):
                self.line(f"{target} = {self.default(field)}")
            elif field.tag is None:
                self.field(field, target)
            else:
                self.line(f"{target} = {self.default(field)}")
                tagged.append((field, target))
        if self.flexible:
            self.tags(tagged)
        return this

    def default(self, field: Field) -> str:
        value = field.zero()
        if field.mutable:
            return "[]" if field.array else f"{self.name('fresh', type(value))}()"
        if value is None or type(value) in (bool, int, str, bytes):
            return repr(value)
        return self.name("default", value)

    def field(self, field: Field, target: str) -> None:
        nullable = field.nullable(self.version)
        if field.array:
            self.array_field(field, target, nullable)
        elif isinstance(field.kind, str):
            self.scalar(field.kind, target, nullable, field.name)
        elif field.has_null_marker(self.version):
            marker = self.local("n")
            self.read("b", marker)
            self.flush()
            self.line(f"if {marker} <= {field.null_marker}:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.nested(field.kind, target)
        else:
            self.line(f"{target} = {self.object(field.kind)}")

    def nested(self, cls: type[Struct], target: str) -> None:
        self.indent += 1
        inner = self.object(cls)
        self.flush()
        self.line(f"{target} = {inner}")
        self.indent -= 1

    def scalar(self, kind: str, target: str, nullable: bool, name: str) -> None:
        if kind == "uuid":
            self.read("16s", target)
        elif kind in ("string", "bytes", "records"):
            n = self.length("h" if kind == "string" else "i")
            self.sized(kind, target, n, nullable, name)
        else:
            self.read(kind, target)

    def sized(self, kind: str, target: str, n: str, nullable: bool, name: str) -> None:
        stop = self.local("q")
        bad = f"{n} < 0"
        if kind == "string" and self.flexible:
            bad = f"not 0 <= {n} <= {MAX_STRING_BYTES}"
        self.line(f"if {bad}:")
        if nullable:
            self.line(f"    if {n} != -1:")
            self.line(f"        reject({name!r}, {n})")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.line(f"    reject({name!r}, {n})")
        self.line(f"{stop} = pos + {n}")
        if kind == "string":
            self.line(f'{target} = str(buf[pos:{stop}], "utf-8")')
        elif kind == "bytes":
            self.line(f"{target} = bytes(buf[pos:{stop}])")
        else:
            self.names["memoryview"] = memoryview
            self.line(f"{target} = memoryview(buf)[pos:{stop}]")
        self.line(f"pos = {stop}")
        if nullable:
            self.indent -= 1

    def array_field(self, field: Field, target: str, nullable: bool) -> None:
        n = self.length("i")
        min_size = _min_size(field.kind, self.version, self.flexible)
        if nullable:
            self.line(f"if {n} == -1:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        self.line(f"left -= {n}")
        self.line(f"if {n} < 0 or left < 0 or {n} * {min_size} > end - pos:")
        self.line(f"    reject_count({field.name!r}, {n}, left)")
        if isinstance(field.kind, str) and len(field.kind) == 1:
            self.line(f"{target} = list(unpack_from(f'>{{{n}}}{field.kind}', buf, pos))")
            self.line(f"pos += {n} * {min_size}")
        else:
            self.elements(field, target, n)
        if nullable:
            self.indent -= 1

    def elements(self, field: Field, target: str, n: str) -> None:
        items, add = self.local("items"), self.local("add")
        self.line(f"{target} = {items} = []")
        self.line(f"{add} = {items}.append")
        with self.loop(f"for _ in range({n}):"):
            if isinstance(field.kind, str):
                item = self.local("v")
                self.scalar(field.kind, item, False, field.name)
            else:
                item = self.object(field.kind)
            self.flush()
            self.line(f"{add}({item})")

    def tags(self, tagged: list[tuple[Field, str]]) -> None:
        count = self.local("t")
        self.read("B", count)
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        if tagged:
            self.known_tags(tagged, count)
        else:
            self.line(f"pos = skip_tags(buf, pos, {count})")
        self.indent -= 1

    def known_tags(self, tagged: list[tuple[Field, str]], count: str) -> None:
        tag, size, stop = self.local("tag"), self.local("n"), self.local("q")
        self.line(f"if {count} > {primitives.MAX_UNKNOWN_TAGS}:")
        self.line(f"    reject('tagged fields', {count})")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, pos = uvarint(buf, pos)")
        self.line(f"{size}, pos = uvarint(buf, pos)")
        self.line(f"{stop} = pos + {size}")
        word = "if"
        for field, target in tagged:
            self.line(f"{word} {tag} == {field.tag}:")
            word = "elif"
            self.indent += 1
            self.field(field, target)
            self.flush()
            self.indent -= 1
        self.line("else:")
        self.line(f"    pos = {stop}")
        self.line(f"if pos != {stop}:")
        self.line(f"    reject('tagged field', {size})")
        self.indent -= 1


class _Encoder(_Writer):
    """Generates `codec(message, out, parts)`.

    `out` is the last bytearray in `parts`. Large records are appended to `parts`, followed by a new
    bytearray. Each method that is named after a type adds the code that encodes a value of this
    type.
    """

    error = EncodeError

    def __init__(self, cls: type[Message], version: int, *, sliced: bool = False) -> None:
        super().__init__(cls, version, sliced=sliced)
        self.out = "out"
        self.names.update(
            uvarint=primitives.write_uvarint,
            pack=struct.pack,
            BUFFERS=frozenset((bytes, bytearray, memoryview)),
            check_string=_check_string,
            cut_message=_truncate_message,
        )
        self.lines.append("def codec(m, out, parts):")
        self.begin_slices()
        self.object(cls, "m")
        self.flush()
        if self.lines[-1].startswith("def"):
            self.line("pass")

    # -- runs -------------------------------------------------------------------------------

    def write(self, letter: str, expression: str = "") -> None:
        """Add a fixed-width value to the current run."""
        self.run.append((letter, expression))

    def flush(self) -> None:
        run, self.run = self.run, []
        self.pack(run)

    def pack(self, run: list[tuple[str, str]]) -> None:
        if not run:
            return
        letters = "".join(letter for letter, _ in run)
        values = ", ".join(value for letter, value in run if letter != "x")
        if not values:
            self.line(f"{self.out} += {bytes(len(letters))!r}")
        elif letters == "B":
            self.line(f"{self.out}.append({values})")
        else:
            self.line(f"{self.out} += {self.packer('pack', letters)}({values})")

    def length(self, letter: str, n: str) -> None:
        """Write a length or count together with the current run; `n` is -1 for null."""
        if not self.flexible:
            self.write(letter, n)
            self.flush()
            return
        run, self.run = self.run, []
        self.line(f"if {n} < 127:")
        self.indent += 1
        self.pack([*run, ("B", f"{n} + 1")])
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.pack(run)
        self.line(f"{self.out} += uvarint({n} + 1)")
        self.indent -= 1

    # -- fields -----------------------------------------------------------------------------

    def object(self, cls: type[Struct], this: str) -> None:
        tagged = []
        for field in fields(cls):
            if not field.present(self.version):
                continue
            if field.tag is None:
                self.field(field, f"{this}.{field.name}")
            else:
                tagged.append(field)
        if self.flexible:
            self.tags(sorted(tagged, key=lambda field: field.tag or 0), this)

    def field(self, field: Field, value: str) -> None:
        nullable = field.nullable(self.version)
        if field.array:
            self.array(field, value, nullable)
        elif field.name.endswith(ERROR_MESSAGE):
            self.sized("string", value, nullable, cut=True)
        elif isinstance(field.kind, str):
            self.scalar(field.kind, value, nullable)
        else:
            marker = field.null_marker if field.has_null_marker(self.version) else None
            self.struct(field.kind, value, marker)

    def struct(self, cls: type[Struct], value: str, null_marker: int | None) -> None:
        this = self.local("o")
        self.line(f"{this} = {value}")
        if null_marker is None:
            # None in a field that is not nullable: the struct with all defaults.
            self.line(f"if {this} is None:")
            self.line(f"    {this} = {self.name('fresh', cls)}()")
            self.object(cls, this)
            return
        self.flush()
        self.line(f"if {this} is None:")
        self.line(f"    {self.out}.append({null_marker & 0xFF})")
        self.line("else:")
        self.indent += 1
        self.write("B", "1")
        self.object(cls, this)
        self.flush()
        self.indent -= 1

    def scalar(self, kind: str, value: str, nullable: bool) -> None:
        if kind == "uuid":
            self.write("16s", f"{value}.bytes")
        elif kind == "records":
            self.records(value, nullable)
        elif kind in ("string", "bytes"):
            self.sized(kind, value, nullable)
        else:
            self.write(kind, value)

    def sized(self, kind: str, value: str, nullable: bool, *, cut: bool = False) -> None:
        s, n = self.local("s"), self.local("n")
        convert = ".encode()" if kind == "string" else ""
        if nullable:
            self.line(f"{s} = {value}")
            self.line(f"if {s} is None:")
            self.line(f"    {s} = b''")
            self.line(f"    {n} = -1")
            self.line("else:")
            self.indent += 1
            if convert:
                self.line(f"{s} = {s}{convert}")
            self.line(f"{n} = len({s})")
            self.indent -= 1
        else:
            empty = "''" if kind == "string" else "b''"
            self.line(f"{s} = ({value} or {empty}){convert}")
            self.line(f"{n} = len({s})")
        if cut:
            self.line(f"if {n} > {ERROR_MESSAGE_BYTES_MAX}:")
            self.line(f"    {s} = cut_message({s})")
            self.line(f"    {n} = len({s})")
        elif kind == "string" and self.flexible:
            self.line(f"if {n} > {MAX_STRING_BYTES}:")
            self.line(f"    check_string({n})")
        self.length("h" if kind == "string" else "i", n)
        self.line(f"{self.out} += {s}")

    def records(self, value: str, nullable: bool) -> None:
        if self.out != "out":
            raise TypeError("records cannot be a tagged field")
        r, n = self.local("r"), self.local("n")
        self.line(f"{r} = {value}")
        self.line(f"{n} = len({r}) if {r} is not None else {-1 if nullable else 0}")
        self.length("i", n)
        self.line(f"if {n} < {DETACHED_SIZE} and type({r}) in BUFFERS:")
        self.line(f"    out += {r}")
        self.line(f"elif {n} > 0:")
        self.line("    out = bytearray()")
        self.line(f"    parts += ({r}, out)")

    def array(self, field: Field, value: str, nullable: bool) -> None:
        items, n = self.local("items"), self.local("n")
        if nullable:
            self.line(f"{items} = {value}")
            self.line(f"{n} = -1 if {items} is None else len({items})")
        else:
            self.line(f"{items} = {value} or ()")
            self.line(f"{n} = len({items})")
        self.length("i", n)
        if isinstance(field.kind, str) and len(field.kind) == 1:
            self.line(f"if {n} > 0:")
            self.line(f"    {self.out} += pack(f'>{{{n}}}{field.kind}', *{items})")
            return
        item = self.local("v")
        with self.loop(f"for {item} in {items}{' or ()' if nullable else ''}:"):
            if isinstance(field.kind, str):
                self.scalar(field.kind, item, False)
            else:
                self.object(field.kind, item)
            self.flush()

    def tags(self, tagged: list[Field], this: str) -> None:
        if not tagged:
            self.write("x")
            return
        values = []
        for field in tagged:
            value, default = self.local("v"), field.zero()
            self.line(f"{value} = {this}.{field.name}")
            values.append((field, value, self.differs(field, value, default)))
        count = self.local("t")
        self.line(f"{count} = {' + '.join(f'({differs})' for _, _, differs in values)}")
        self.write("B", count)
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        for field, value, differs in values:
            self.line(f"if {differs}:")
            self.indent += 1
            self.tagged(field, value)
            self.indent -= 1
        self.indent -= 1

    def differs(self, field: Field, value: str, default: Any) -> str:
        """Return the condition under which a tagged field is encoded."""
        if field.array and not field.optional:
            return f"len({value}) > 0"
        if isinstance(field.kind, str) or field.array:
            if default is None:
                return f"{value} is not None"
            literal = type(default) in (bool, int, str, bytes)
            return f"{value} != {repr(default) if literal else self.name('default', default)}"
        if field.has_null_marker(self.version):
            return "True"
        unset = self.name("unset", field.kind())
        return f"{value} is not None and {value} != {unset}"

    def tagged(self, field: Field, value: str) -> None:
        outer, self.out = self.out, self.local("body")
        self.line(f"{self.out} = bytearray()")
        self.field(field, value)
        self.flush()
        body, self.out = self.out, outer
        self.line(f"{outer} += uvarint({field.tag})")
        self.line(f"{outer} += uvarint(len({body}))")
        self.line(f"{outer} += {body}")


def _min_size(kind: str | type[Struct], version: int, flexible: bool) -> int:
    """Return the minimum size in bytes of one array element of this type."""
    if isinstance(kind, str):
        if kind == "uuid":
            return 16
        if kind in ("string", "bytes", "records"):
            return 1 if flexible else 2 if kind == "string" else 4
        return struct.calcsize(">" + kind)
    size = 1 if flexible else 0
    for field in fields(kind):
        if not field.present(version) or field.tag is not None:
            continue
        if field.array:
            size += 1 if flexible else 4
        elif not isinstance(field.kind, str) and field.nullable(version):
            size += 1
        else:
            size += _min_size(field.kind, version, flexible)
    return max(size, 1)


def _reject(name: str, n: int) -> None:
    raise DecodeError(f"{name}: length {n}")


def _reject_count(name: str, n: int, left: int) -> None:
    if left < 0:
        raise TooManyElementsError(f"{name}: {n} elements exceed the limit")
    raise DecodeError(f"{name}: {n} elements are more than the frame can hold")


def _truncate_message(text: bytes) -> bytes:
    whole = text[: ERROR_MESSAGE_BYTES_MAX - len(TRUNCATION_MARK)].decode(errors="ignore")
    return whole.encode() + TRUNCATION_MARK


def _check_string(n: int) -> None:
    raise EncodeError(f"string of {n} bytes exceeds the maximum of {MAX_STRING_BYTES}")
