"""Tools: names, parameters and effects, and what a call works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from kbroker.client.cluster import ClusterClient

from .control import ControlPort
from .parameters import Arguments, Parameter, flag
from .results import Result
from .schemas import SchemaDecoder


class Effect(Enum):
    """The effect of a tool on the cluster."""

    READ = "reads"
    WRITE = "writes"
    # Deletes or replaces data, offsets or permissions.
    DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class Session:
    """The cluster of the tools; None for what the user has not configured.

    Attributes:
        control: Control port of a broker.
        schemas: Decoder of keys and values by a schema registry.
    """

    cluster: ClusterClient
    control: ControlPort | None = None
    schemas: SchemaDecoder | None = None


Call: TypeAlias = Callable[[Session, Arguments], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the server.

    Attributes:
        idempotent: True if a second call with the same arguments has no further effect.
        needs_control: True if the tool uses the broker's control port.
    """

    name: str
    title: str
    description: str
    effect: Effect
    call: Call
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    idempotent: bool = False
    needs_control: bool = False


DRY_RUN = flag("Only check the request; change nothing.")
# Destructive tools preview unless told otherwise.
PREVIEW = flag(
    "Only return what would change. Call the tool again with false to apply the change.",
    default=True,
)
