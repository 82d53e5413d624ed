"""A disk of a real process whose calls fail at random, until it is healed."""

from __future__ import annotations

import errno
import mmap
import os
import random
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..machine import LOCAL, Machine

SOURCE = Path(__file__).with_suffix(".c")
OPERATIONS = ("open", "create", "read", "write", "sync", "rename", "remove", "list")
CALLS = 10_000
"""A rate is the number of failures in so many calls."""
_ORDERS = struct.Struct(f"=I{len(OPERATIONS)}I{len(OPERATIONS)}I")
_RATES = struct.Struct(f"=I{len(OPERATIONS)}I")


def compiled(directory: Path) -> Path:
    """Compile the library that makes calls fail."""
    library = directory / "failing_disk.so"
    words = ("cc", "-O2", "-shared", "-fPIC", "-Wall", "-Werror")
    subprocess.run([*words, "-o", library, SOURCE, "-ldl"], check=True)
    return library


class FailingDisk:
    """The disk of one process; it works until `fail`.

    Attributes:
        machine: where to run the process.
    """

    def __init__(self, library: Path, directory: Path, orders: Path) -> None:
        orders.write_bytes(bytes(_ORDERS.size))
        descriptor = os.open(orders, os.O_RDWR)
        self._orders = mmap.mmap(descriptor, _ORDERS.size)
        os.close(descriptor)
        names = f"FAILING_DISK_DIRECTORY={directory}/", f"FAILING_DISK_ORDERS={orders}"
        self.machine = Machine(LOCAL.address, ("env", f"LD_PRELOAD={library}", *names))

    def fail(self, error: int, rates: Mapping[str, int]) -> None:
        """Let these operations fail with an errno, each so often in 10,000 calls."""
        _RATES.pack_into(self._orders, 0, error, *(rates.get(each, 0) for each in OPERATIONS))

    def heal(self) -> None:
        self.fail(0, {})

    @property
    def failed(self) -> dict[str, int]:
        """Number of failed calls by operation."""
        counts = _ORDERS.unpack_from(self._orders)[1 + len(OPERATIONS) :]
        return dict(zip(OPERATIONS, counts, strict=True))


class Fault(NamedTuple):
    """Calls that fail for some time.

    Attributes:
        name: what it is.
        error: errno of the calls.
        rates: failures in 10,000 calls, for each operation.
        seconds: how long.
    """

    name: str
    error: int
    rates: dict[str, int]
    seconds: float


def drawn(draw: random.Random) -> Fault:
    """A disk that is full, broken or fails now and then."""
    name = draw.choice(["full", "broken", "flaky", "flaky", "flaky"])
    seconds = draw.uniform(0.1, 1.0)
    if name == "full":
        rates = dict.fromkeys(("create", "write"), CALLS)
        return Fault(name, errno.ENOSPC, rates, seconds)
    if name == "broken":
        return Fault(name, errno.EIO, dict.fromkeys(OPERATIONS, CALLS), seconds)
    failing = draw.sample(OPERATIONS, draw.randint(1, 3))
    rates = {each: draw.choice([50, 500, 5000, CALLS]) for each in failing}
    error = draw.choice([errno.EIO, errno.EIO, errno.ENOSPC])
    return Fault(f"{os.strerror(error)} of {' and '.join(sorted(failing))}", error, rates, seconds)
