"""What identifies a record: all of it, its key, a header, or a field of its JSON value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kbroker.text.documents import read_json

from .rows import Headers, Rows


class By(StrEnum):
    """What two records are compared by."""

    RECORD = "record"
    KEY = "key"
    HEADER = "header"
    FIELD = "field"


FORMS = "record, key, header:NAME, field:NAME"


class BadIdentity(ValueError):
    """A text that names nothing that could identify a record."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a record; `name` is that of the header, or of the field of a JSON object."""

    by: By = By.RECORD
    name: str = ""
    with_time: bool = False
    """For whole records: whether the timestamp counts too."""

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Read ``record``, ``key``, ``header:NAME`` or ``field:NAME``. Raises BadIdentity."""
        by, separator, name = text.partition(":")
        named = by in (By.HEADER, By.FIELD)
        if by not in set(By) or named != bool(name) or named != bool(separator):
            raise BadIdentity(f"{text!r} identifies no record; there are {FORMS}")
        return cls(By(by), name)

    def __str__(self) -> str:
        return f"{self.by}:{self.name}" if self.name else str(self.by)

    def hashes(self, rows: Rows) -> list[int]:
        """A 64-bit hash of what identifies each record, the same in all of this process.

        Python keys its hashes of bytes anew for each process. Records whose header or field is
        missing, or whose value is no JSON object, all have that in common.
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
        """The first header of that name."""
        return next((value for name, value in headers if name == self.name), None)

    def _field(self, value: bytes | None) -> str | None:
        try:
            found = read_json(value or b"null")
        except ValueError:
            return None
        if not isinstance(found, dict) or self.name not in found:
            return None
        return json.dumps(found[self.name], sort_keys=True)
