"""Tests of the checksum function, and of how it is imported."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package

from kbroker.protocol.checksum import crc32c


def test_checksum_equals_that_of_the_package() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(memoryview(b"6789"), crc32c(bytearray(b"12345"))) == crc32c(b"123456789")
    assert package.crc32c(b"x", 7) == crc32c(b"x", 7)


def test_extension_is_imported_without_its_package() -> None:
    script = (
        "import sys, kbroker.protocol.checksum as ours;"
        "assert 'crc32c' not in sys.modules and 'importlib.metadata' not in sys.modules;"
        "import crc32c; assert crc32c.crc32c is ours.crc32c"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_imported_package_is_used() -> None:
    script = (
        "import sys, crc32c, kbroker.protocol.checksum as ours;assert ours.crc32c is crc32c.crc32c"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
