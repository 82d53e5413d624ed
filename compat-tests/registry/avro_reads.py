"""Compatibility of schema pairs according to the Avro library for Python.

Each pair is two lines of input: the schema of the reader, and that of the writer.
"""

from __future__ import annotations

import sys

from avro.compatibility import ReaderWriterCompatibilityChecker
from avro.errors import AvroException
from avro.schema import parse


def compatibility_of(reader: str, writer: str) -> str:
    try:
        schemas = parse(reader), parse(writer)
    except AvroException:
        return "INVALID"
    return ReaderWriterCompatibilityChecker().get_compatibility(*schemas).compatibility.name.upper()


lines = sys.stdin.read().splitlines()
for reader, writer in zip(lines[::2], lines[1::2], strict=True):
    print(compatibility_of(reader, writer))
