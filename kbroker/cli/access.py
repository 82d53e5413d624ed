"""Operations of commands, for messages about missing permissions."""

from __future__ import annotations

from typing import NamedTuple


class Access(NamedTuple):
    """An operation that a command performs; `kind` is `topic`, `group` or `cluster`."""

    operation: str
    kind: str
    name: str = ""
