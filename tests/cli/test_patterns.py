"""Names, glob patterns and regular expressions in arguments."""

from __future__ import annotations

import click
import pytest

from kbroker.cli.patterns import TOPIC, Names, matching_names
from kbroker.client.errors import ClientError

from ..commands import Cli, ReadJson

EXISTING = ["orders", "orders-eu", "orders-us", "users", "v1.2", "v1x2"]


@pytest.mark.parametrize(
    ("given", "regex", "expected"),
    [
        (["orders-*"], False, ["orders-eu", "orders-us"]),
        (["orders-?u", "users", "orders-*"], False, ["orders-eu", "users", "orders-us"]),
        (["orders-[!e]*"], False, ["orders-us"]),
        (["missing"], False, ["missing"]),
        (["orders(-eu)?", "user."], True, ["orders", "orders-eu", "users"]),
        (["order"], True, None),
        (["v1.2"], True, ["v1.2"]),
        (["Orders*"], False, None),
    ],
)
def test_names_and_patterns_select_existing_names(
    given: list[str], regex: bool, expected: list[str] | None
) -> None:
    if expected is None:
        with pytest.raises(ClientError, match=r"matches no topic.*kbroker topic list"):
            matching_names(Names(given, regex), EXISTING, TOPIC)
    else:
        assert matching_names(Names(given, regex), EXISTING, TOPIC) == expected


def test_existing_name_takes_precedence_over_pattern() -> None:
    existing = ["g*", "gx"]
    assert matching_names(Names(["g*"], regex=False), existing, TOPIC) == ["g*"]
    assert matching_names(Names(["g?"], regex=False), existing, TOPIC) == ["g*", "gx"]


def test_pattern_without_match_suggests_similar_names() -> None:
    with pytest.raises(ClientError) as raised:
        matching_names(Names(["ordres-*"], regex=False), EXISTING, TOPIC)
    assert str(raised.value).startswith("pattern 'ordres-*' matches no topic; similar names: 'orde")
    assert matching_names(Names(["x*"], regex=False), EXISTING, TOPIC, may_miss=True) == []


def test_invalid_regular_expression_is_rejected() -> None:
    with pytest.raises(click.UsageError, match="not a valid regular expression"):
        matching_names(Names(["(a"], regex=True), EXISTING, TOPIC)
    with pytest.raises(click.UsageError, match="not a valid regular expression"):
        matching_names(Names([r"(a)\1"], regex=True), EXISTING, TOPIC)


async def test_topic_commands_accept_patterns(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "orders-eu", "orders-us", "users")
    await cli("group", "seek", "g", "--to", "end", "-t", "users")  # creates an internal topic
    for command in ("list", "describe"):
        rows = await read_json("topic", command, "orders-*")
        assert [row["name"] for row in rows] == ["orders-eu", "orders-us"]
        rows = await read_json("topic", command, "--regex", "(orders-eu|users)")
        assert [row["name"] for row in rows] == ["orders-eu", "users"]
        nothing = await cli("topic", command, "ordres-*", status=1)
        assert "pattern 'ordres-*' matches no topic; similar names: 'orders-" in nothing.stderr
    await cli("topic", "alter-config", "orders-*", "--set", "retention.ms=5")
    changed = await read_json("topic", "describe", "*")
    assert [row["configs"] for row in changed] == [*[{"retention.ms": "5"}] * 2, {}]
    await cli("topic", "produce", "orders-eu", "x")
    trimmed = await read_json("topic", "trim", "orders-*", "--before", "end", "--yes")
    assert {row["topic"] for row in trimmed} == {"orders-eu", "orders-us"}
    deleted = await cli("topic", "delete", "orders-*", "nothing*", "--if-exists", "--yes")
    assert deleted.stdout == "orders-eu: deleted\norders-us: deleted\n"
    await cli("topic", "delete", "*", "--yes")
    assert {row["name"] for row in await read_json("topic", "list", "-i")} == {"__consumer_offsets"}
    nothing = await cli("topic", "list", "missing", status=1)
    assert "topic 'missing' does not exist" in nothing.stderr


async def test_group_commands_accept_patterns(cli: Cli, read_json: ReadJson, topic: str) -> None:
    for name in ("app-a", "app-b", "other"):
        await cli("group", "seek", name, "--to", "end", "-t", topic)
    for command in ("list", "describe"):
        rows = await read_json("group", command, "app-*")
        assert [row["group"] for row in rows] == ["app-a", "app-b"]
        rows = await read_json("group", command, "--regex", "app-a|oth.r")
        assert [row["group"] for row in rows] == ["app-a", "other"]
        nothing = await cli("group", command, "appp*", status=1)
        assert "pattern 'appp*' matches no group; similar names: 'app-" in nothing.stderr
    moved = await read_json("group", "seek", "app-*", "--to", "2", "--yes", "-t", f"{topic}:0")
    assert [(row["group"], row["new_offset"]) for row in moved] == [("app-a", 2), ("app-b", 2)]
    table = (await cli("group", "seek", "app-*", "--to", "2", "--dry-run")).stdout
    assert table.split()[:3] == ["GROUP", "TOPIC", "PARTITION"]
    rows = await read_json("group", "offset-delete", "app-*", "-t", f"{topic}:1", "--yes")
    assert [(row["group"], row["offset"]) for row in rows] == [("app-a", 0), ("app-b", 0)]
    deleted = await cli("group", "delete", "app-*", "--yes")
    assert deleted.stdout == "app-a: deleted\napp-b: deleted\n"
    missing = await cli("group", "list", "missing", status=1)
    assert "group 'missing' does not exist; list all with" in missing.stderr
