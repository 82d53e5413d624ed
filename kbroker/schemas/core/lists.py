"""Lists of subjects and versions, which are computed in threads from a snapshot of the schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter

from .store import Registered, Snapshot


def subjects(known: Snapshot, *, prefix: str, deleted: bool, deleted_only: bool) -> list[str]:
    """Return the subjects with a live version, or with a deleted one if requested, in order."""
    return sorted(
        subject
        for subject, versions in known
        if subject.startswith(prefix)
        and any(
            each.is_deleted if deleted_only else deleted or not each.is_deleted for each in versions
        )
    )


def versions(known: Snapshot, *, prefix: str, deleted: bool, latest_only: bool) -> list[Registered]:
    """Return the versions of all subjects with a prefix, in order of subjects and versions."""
    found: list[Registered] = []
    for _, some in sorted(row for row in known if row[0].startswith(prefix)):
        listed = sorted(
            (each for each in some if deleted or not each.is_deleted), key=attrgetter("version")
        )
        found += listed[-1:] if latest_only else listed
    return found


def with_metadata(
    known: Sequence[Registered], requested: Mapping[str, str]
) -> dict[str, object] | None:
    """Return the document of the last version whose metadata contains some properties, or None."""
    for each in reversed(known):
        properties = json.loads(each.content.metadata or "{}").get("properties")
        if not isinstance(properties, dict):
            properties = {}
        if requested.items() <= properties.items():
            return each.document()
    return None
