"""The shipper: it reads log files and sends a record for each entry.

It puts the lines of an entry together, and it alone can: it sees the lines of one file in order, while
readers of a topic get those of many files, mixed, in batches that end anywhere. It looks at nothing
else; what a line means is decided in the pipeline, where a mistake can be corrected by a replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from topics import Record

_FIRST_LINE = re.compile(rb"\d{4}-\d\d-\d\d |\{")
"""An entry begins with a date or a brace; any other line goes on with the entry before it."""


def records(log_files: Mapping[str, Iterable[bytes]]) -> Iterator[Record]:
    """The entries of each service's file, keyed by service."""
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
