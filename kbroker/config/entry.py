"""One setting with its value and source, as DescribeConfigs shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .property import Source


class Synonym(NamedTuple):
    """One place that a value could come from; the strongest stands first."""

    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    """One setting of a DescribeConfigs answer. ``value`` is null when unset or sensitive."""

    name: str
    value: str | None
    read_only: bool
    is_default: bool
    source: Source
    sensitive: bool
    synonyms: Sequence[Synonym]
    type: int
    doc: str
