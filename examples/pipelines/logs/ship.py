"""Shipper that reads log files and sends a record for each entry.

It joins the lines of an entry, because only the shipper sees the lines of one file in order. A
topic mixes the lines of many files, and batches can end anywhere. The shipper does not parse
entries; the pipeline does, where a mistake can be corrected by a replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from topics import Record

# Start of an entry: a date or a brace. Other lines continue the previous entry.
_FIRST_LINE = re.compile(rb"\d{4}-\d\d-\d\d |\{")


def records(log_files: Mapping[str, Iterable[bytes]]) -> Iterator[Record]:
    """Yield the entries of each service's file, keyed by service."""
    for service, lines in log_files.items():
        for raw in _entries(lines):
            yield Record(service.encode(), raw)


def _entries(lines: Iterable[bytes]) -> Iterator[bytes]:
    entry: list[bytes] = []
    for line in lines:
        if entry and _FIRST_LINE.match(line):
            yield b"\n".join(entry)
            entry = []
        entry.append(line)
    if entry:
        yield b"\n".join(entry)
