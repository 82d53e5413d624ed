"""Choice of the tools that a server offers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.agents.catalog import UnknownTool, all_tools, choose_tools
from kbroker.agents.parameters import object_schema
from kbroker.agents.tool import Effect

PAGE = Path(__file__).parents[2] / "docs/how-to/agents.md"


def test_only_reading_tools_are_offered_by_default() -> None:
    found = choose_tools()
    assert {each.effect for each in found} == {Effect.READ}
    assert "consume_messages" in {each.name for each in found}


def test_tools_of_control_port_need_control_port() -> None:
    without = {each.name for each in choose_tools(writes=True)}
    added = {each.name for each in choose_tools(writes=True, has_control=True)} - without
    assert added == {each.name for each in all_tools() if each.needs_control}
    assert "explain" in added


def test_allowed_and_denied_tools_are_chosen_by_name() -> None:
    names = {each.name for each in choose_tools(allowed=["create_topic"], denied=["list_acls"])}
    expected = {each.name for each in choose_tools()} - {"list_acls"} | {"create_topic"}
    assert names == expected
    assert "delete_topic" not in {
        each.name for each in choose_tools(writes=True, denied=["delete_topic"])
    }


@pytest.mark.parametrize("option", ["allowed", "denied"])
def test_unknown_name_is_rejected_with_valid_ones(option: str) -> None:
    with pytest.raises(UnknownTool, match=r"'drop' \(valid: describe_cluster, "):
        choose_tools(**{option: ["drop"]})  # type: ignore[arg-type]


def test_allowed_tool_without_its_control_port_is_rejected() -> None:
    with pytest.raises(UnknownTool, match="needs the control port"):
        choose_tools(allowed=["inject_fault"])


def test_destructive_tools_preview_by_default() -> None:
    for tool in all_tools():
        if tool.effect is Effect.DESTRUCTIVE:
            assert tool.parameters["dry_run"].schema["default"] is True, tool.name
        assert re.fullmatch(r"[a-z_]{1,64}", tool.name)


def test_schemas_reject_unknown_arguments_and_describe_the_known() -> None:
    for tool in all_tools():
        assert object_schema(tool.parameters)["additionalProperties"] is False
        assert all("description" in each.schema for each in tool.parameters.values()), tool.name


def test_page_lists_every_tool_with_its_effect() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(each.name, each.effect.value) for each in all_tools()]
