"""Identity of a record: the whole record, its key, a header, or a field of its JSON value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kbroker.text.documents import read_json

from .rows import Headers, Rows


class By(StrEnum):
    """Parts of a record that can be its identity."""

    RECORD = "record"
    KEY = "key"
    HEADER = "header"
    FIELD = "field"


FORMS = "record, key, header:NAME, field:NAME"


class BadIdentity(ValueError):
    """The text does not describe an identity."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a record; `name` is the name of the header or JSON field."""

    by: By = By.RECORD
    name: str = ""
    # For whole records: include the timestamp.
    with_time: bool = False

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Parse ``record``, ``key``, ``header:NAME`` or ``field:NAME``. Raises BadIdentity."""
        by, separator, name = text.partition(":")
        named = by in (By.HEADER, By.FIELD)
        if by not in set(By) or named != bool(name) or named != bool(separator):
            raise BadIdentity(f"unknown record identity {text!r} (valid: {FORMS})")
        return cls(By(by), name)

    def __str__(self) -> str:
        return f"{self.by}:{self.name}" if self.name else str(self.by)

    def hashes(self, rows: Rows) -> list[int]:
        """Return a 64-bit hash of each record's identity, stable within this process only.

        Python salts hashes of bytes per process. Records without the header or field, or whose
        value is not a JSON object, all have the same identity.
        """
        if self.by is By.KEY:
            return list(map(hash, rows.keys))
        if self.by is By.HEADER:
            return [hash(self._header(headers)) for headers in rows.headers]
        if self.by is By.FIELD:
            return [hash(self._field(value)) for value in rows.values]
        columns: list[Iterable[object]] = [rows.keys, rows.values, rows.headers]
        if self.with_time:
            columns.append(rows.timestamps)
        return list(map(hash, zip(*columns, strict=True)))

    def _header(self, headers: Headers) -> bytes | None:
        """Return the first header with the name."""
        return next((value for name, value in headers if name == self.name), None)

    def _field(self, value: bytes | None) -> str | None:
        try:
            found = read_json(value or b"null")
        except ValueError:
            return None
        if not isinstance(found, dict) or self.name not in found:
            return None
        return json.dumps(found[self.name], sort_keys=True)
