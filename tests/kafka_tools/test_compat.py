"""`kbroker compat`: the tools by name."""

from __future__ import annotations

from ..commands import invoke


def test_compat_prints_random_uuid_and_tool_names() -> None:
    assert len(invoke("compat", "kafka-storage", "random-uuid").stdout.strip()) == 22
    assert "kafka-topics" in invoke("compat", "--list").stdout.splitlines()


def test_compat_list_has_only_supported_tools_unless_all_are_requested() -> None:
    assert "kafka-transactions" not in invoke("compat", "--list").stdout.splitlines()
    assert "kafka-transactions" in invoke("compat", "--list", "--all").stdout.splitlines()
    done = invoke("compat", "kafka-transactions", "list", status=1)
    assert "use `kbroker cluster txn`" in done.output
