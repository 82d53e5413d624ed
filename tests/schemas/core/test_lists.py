"""Lists of subjects and versions, from a snapshot without order."""

from __future__ import annotations

import pytest

from kbroker.schemas.core import lists
from kbroker.schemas.core.store import Registered
from kbroker.schemas.core.values import AVRO, Content


def version(
    subject: str, number: int, *, deleted: bool = False, metadata: str | None = None
) -> Registered:
    content = Content(AVRO, f'"{subject}-{number}"', metadata=metadata)
    return Registered(subject, number, number, content, deleted)


KNOWN = [
    ("b", [version("b", 2), version("b", 1), version("b", 3, deleted=True)]),
    ("a", [version("a", 1, deleted=True)]),
    ("ab", [version("ab", 7)]),
]


@pytest.mark.parametrize(
    ("prefix", "deleted", "deleted_only", "expected"),
    [
        ("", False, False, ["ab", "b"]),
        ("", True, False, ["a", "ab", "b"]),
        ("", False, True, ["a", "b"]),
        ("a", True, False, ["a", "ab"]),
        ("c", True, False, []),
    ],
)
def test_subjects_are_sorted_and_selected(
    prefix: str, deleted: bool, deleted_only: bool, expected: list[str]
) -> None:
    found = lists.subjects(KNOWN, prefix=prefix, deleted=deleted, deleted_only=deleted_only)
    assert found == expected


@pytest.mark.parametrize(
    ("prefix", "deleted", "latest_only", "expected"),
    [
        ("", False, False, [("ab", 7), ("b", 1), ("b", 2)]),
        ("", False, True, [("ab", 7), ("b", 2)]),
        ("", True, True, [("a", 1), ("ab", 7), ("b", 3)]),
        ("b", True, False, [("b", 1), ("b", 2), ("b", 3)]),
    ],
)
def test_versions_are_sorted_and_selected(
    prefix: str, deleted: bool, latest_only: bool, expected: list[tuple[str, int]]
) -> None:
    found = lists.versions(KNOWN, prefix=prefix, deleted=deleted, latest_only=latest_only)
    assert [each.subject_version for each in found] == expected


def test_latest_version_with_metadata_is_found() -> None:
    texts = (
        '{"properties":{"team":"x","area":"1"}}',
        '{"properties":{"team":"x"}}',
        '{"properties":1}',
    )
    known = [version("s", number, metadata=each) for number, each in enumerate((*texts, None), 1)]
    for requested, expected in (({"team": "x"}, 2), ({"team": "x", "area": "1"}, 1), ({}, 4)):
        found = lists.with_metadata(known, requested)
        assert found is not None
        assert found["version"] == expected
    assert lists.with_metadata(known, {"team": "y"}) is None
