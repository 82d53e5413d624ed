"""Machines on which tests run processes."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """A machine, or a namespace that looks like one to its processes.

    Attributes:
        address: Address at which other machines reach its processes.
        within: Prefix of a command line that runs the command on the machine.
    """

    address: str
    within: tuple[str, ...] = ()


LOCAL = Machine("localhost")
