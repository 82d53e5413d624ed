"""One setting with its value and source, as in a DescribeConfigs response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .property import Source


class Synonym(NamedTuple):
    """One source of a value. Lists of synonyms begin with the highest priority."""

    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    """One setting in a DescribeConfigs response. ``value`` is None if unset or sensitive."""

    name: str
    value: str | None
    read_only: bool
    is_default: bool
    source: Source
    sensitive: bool
    synonyms: Sequence[Synonym]
    type: int
    doc: str
