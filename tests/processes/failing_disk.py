"""A disk of a real process with random I/O errors until it is healed."""

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
# Number of calls to which failure rates refer.
CALLS = 10_000
_ORDERS = struct.Struct(f"=I{len(OPERATIONS)}I{len(OPERATIONS)}I")
_RATES = struct.Struct(f"=I{len(OPERATIONS)}I")


def compiled(directory: Path) -> Path:
    """Compile the library that injects errors."""
    library = directory / "failing_disk.so"
    arguments = ("cc", "-O2", "-shared", "-fPIC", "-Wall", "-Werror")
    subprocess.run([*arguments, "-o", library, SOURCE, "-ldl"], check=True)
    return library


class FailingDisk:
    """The disk of one process; it works until `fail`.

    Attributes:
        machine: Machine that runs the process.
    """

    def __init__(self, library: Path, directory: Path, orders: Path) -> None:
        orders.write_bytes(bytes(_ORDERS.size))
        descriptor = os.open(orders, os.O_RDWR)
        self._orders = mmap.mmap(descriptor, _ORDERS.size)
        os.close(descriptor)
        names = f"FAILING_DISK_DIRECTORY={directory}/", f"FAILING_DISK_ORDERS={orders}"
        self.machine = Machine(LOCAL.address, ("env", f"LD_PRELOAD={library}", *names))

    def fail(self, error: int, rates: Mapping[str, int]) -> None:
        """Inject an errno into operations, at rates per 10,000 calls."""
        _RATES.pack_into(self._orders, 0, error, *(rates.get(each, 0) for each in OPERATIONS))

    def heal(self) -> None:
        self.fail(0, {})

    @property
    def failed(self) -> dict[str, int]:
        """Return the number of failed calls by operation."""
        counts = _ORDERS.unpack_from(self._orders)[1 + len(OPERATIONS) :]
        return dict(zip(OPERATIONS, counts, strict=True))


class Fault(NamedTuple):
    """Injected errors for some time.

    Attributes:
        name: Description.
        error: errno of the failing calls.
        rates: Failures per 10,000 calls, by operation.
        seconds: Duration.
    """

    name: str
    error: int
    rates: dict[str, int]
    seconds: float


def draw_fault(draw: random.Random) -> Fault:
    """Return a random fault: a full, broken or unreliable disk."""
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
