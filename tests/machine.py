"""Where a test lets a process run."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """A machine, or what looks like one to its processes."""

    address: str
    """Where others find what runs there."""
    within: tuple[str, ...] = ()
    """The words of a command that starts what follows them there."""


LOCAL = Machine("localhost")
