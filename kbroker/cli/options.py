"""Sets of options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Command = TypeVar("Command", bound=Callable[..., object])


def add_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Add click options to a command. The help lists them in their order."""
    for option in reversed(options):
        command = option(command)
    return command
