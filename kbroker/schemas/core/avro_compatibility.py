"""Compatibility check for Avro by the schema resolution rules of its specification."""

from __future__ import annotations

from collections.abc import Iterator

from .avro_types import Field, Type
from .limits import DIFFERENCES_MAX, SHOWN_MAX, Budget
from .parsed import Difference

# Types of the writer that a reader promotes, by the type of the reader.
PROMOTED = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}


class CompatibilityChecker:
    """Compares pairs of types. Each pair is compared once, so that recursive types terminate."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[tuple[int, int], list[Difference]] = {}
        self._sets: dict[int, frozenset[str]] = {}
        self._records: dict[int, dict[str, Field]] = {}

    def differences(self, reader: Type, writer: Type, path: str = "") -> list[Difference]:
        """Return why `reader` cannot read data of `writer`; empty if it can."""
        self._budget.spend()
        pair = id(reader), id(writer)
        known = self._known.get(pair)
        if known is None:
            self._known[pair] = []  # assume compatible while recursing
            found = []
            for each in self._compare(reader, writer, path):
                found.append(each)
                if len(found) >= DIFFERENCES_MAX:
                    break
            self._known[pair] = known = found
        return known

    def _compare(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        if writer.kind == "union":
            yield from self._each_branch(reader, writer, path)
        elif reader.kind == "union":
            yield from self._any_branch(reader, writer, path)
        elif reader.kind == writer.kind:
            yield from self._compare_same_kind(reader, writer, path)
        elif writer.kind not in PROMOTED.get(reader.kind, ()):
            yield Difference(
                "TYPE_MISMATCH", path, f"a reader of {reader.kind} cannot read {writer.kind}"
            )

    def _each_branch(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        for index, branch in enumerate(writer.items):
            found = self.differences(reader, branch, f"{path}/{index}")
            if found and reader.kind == "union":
                yield self._missing_branch(branch, f"{path}/{index}")
            else:
                yield from found

    def _any_branch(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        for branch in reader.items:
            if not self.differences(branch, writer, path):
                return
        yield self._missing_branch(writer, path)

    def _missing_branch(self, writer: Type, path: str) -> Difference:
        name = writer.name or writer.kind
        return Difference("MISSING_UNION_BRANCH", path, f"the reader's union has no {name}")

    def _compare_same_kind(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        if reader.kind in ("array", "map"):
            inner = "items" if reader.kind == "array" else "values"
            yield from self.differences(reader.items[0], writer.items[0], f"{path}/{inner}")
            return
        if reader.name and not self._names_match(reader, writer):
            yield Difference(
                "NAME_MISMATCH",
                f"{path}/name",
                f"the reader expects {reader.name}, not {writer.name}",
            )
        if reader.kind == "fixed" and reader.size != writer.size:
            yield Difference(
                "FIXED_SIZE_MISMATCH",
                f"{path}/size",
                f"the reader expects {reader.size} bytes, not {writer.size}",
            )
        if reader.kind == "enum":
            yield from self._symbols(reader, writer, path)
        elif reader.fields or writer.fields:
            yield from self._fields(reader, writer, path)

    def _names_match(self, reader: Type, writer: Type) -> bool:
        """Return True if the names without namespaces are equal, or an alias of the reader matches."""
        if reader.simple_name == writer.simple_name:
            return True
        return bool(reader.aliases) and writer.name in self._names(reader.aliases)

    def _symbols(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        self._budget.spend(len(writer.symbols))
        missing = self._names(writer.symbols).difference(self._names(reader.symbols))
        if missing and not reader.has_default:
            symbols = ", ".join(each[:SHOWN_MAX] for each in sorted(missing)[:10])
            yield Difference(
                "MISSING_ENUM_SYMBOLS", f"{path}/symbols", f"the reader's enum has no {symbols}"
            )

    def _names(self, names: tuple[str, ...]) -> frozenset[str]:
        """Return the names as a cached set."""
        known = self._sets.get(id(names))
        if known is None:
            self._budget.spend(len(names))
            known = self._sets[id(names)] = frozenset(names)
        return known

    def _fields(self, reader: Type, writer: Type, path: str) -> Iterator[Difference]:
        writer_fields = self._fields_of(writer)
        for index, field in enumerate(reader.fields):
            self._budget.spend(1 + len(field.aliases))
            field_path = f"{path}/fields/{index}"
            names = (field.name, *dict.fromkeys(field.aliases))
            found = [writer_fields[name] for name in names if name in writer_fields]
            if len(found) > 1:
                matches = ", ".join(each.name[:SHOWN_MAX] for each in found[:10])
                yield Difference(
                    "READER_FIELD_AMBIGUOUS",
                    field_path,
                    f"field {field.name} of the reader matches several fields of the writer: {matches}",
                )
            elif found:
                yield from self.differences(field.type, found[0].type, f"{field_path}/type")
            elif not field.has_default:
                yield Difference(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    field_path,
                    f"the writer has no field {field.name}, and the reader has no default for it",
                )

    def _fields_of(self, record: Type) -> dict[str, Field]:
        """Return the fields of a record by name, as a cached dictionary."""
        known = self._records.get(id(record))
        if known is None:
            self._budget.spend(len(record.fields))
            known = self._records[id(record)] = {each.name: each for each in record.fields}
        return known
