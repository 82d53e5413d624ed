"""`kbroker compat`: the tools by name."""

from __future__ import annotations

from ..commands import invoke


def test_compat_prints_random_uuid_and_tool_names() -> None:
    assert len(invoke("compat", "kafka-storage", "random-uuid").stdout.strip()) == 22
    assert "kafka-topics" in invoke("compat", "--list").stdout.splitlines()
