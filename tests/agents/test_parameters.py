"""Parameters: schemas, defaults, and messages about invalid arguments."""

from __future__ import annotations

import pytest

from kbroker.agents.parameters import (
    ELEMENTS_MAX,
    MESSAGE_LENGTH_MAX,
    BadArguments,
    check,
    choice,
    choices,
    flag,
    integer,
    integers,
    objects,
    offsets,
    pairs,
    parse_past_time_ms,
    text,
    texts,
)
from kbroker.text.documents import Json

PARAMETERS = {
    "name": text("A name.", required=True),
    "kind": choice("A kind.", ["a", "b"], default="a"),
    "count": integer("A number.", 1, 9, default=3),
    "verbose": flag("A flag."),
    "numbers": integers("Numbers."),
    "words": texts("Words."),
    "settings": pairs("Settings."),
    "offsets": offsets("Offsets."),
}


def test_defaults_apply_to_missing_and_null_arguments() -> None:
    found = check(PARAMETERS, {"name": "x", "count": None})
    assert (found.text("kind"), found.number("count"), found.flag("verbose")) == ("a", 3, False)
    assert (found.numbers("numbers"), found.pairs("settings"), found.offsets("offsets")) == (
        [],
        {},
        {},
    )
    assert found.given("name", "numbers") == ["name"]


def test_given_arguments_replace_defaults() -> None:
    given: dict[str, Json] = {
        "name": "x",
        "kind": "b",
        "count": 4.0,
        "verbose": True,
        "numbers": [1, 2],
        "words": ["w"],
        "settings": {"k": "v"},
        "offsets": {"3": 7},
    }
    found = check(PARAMETERS, given)
    assert (found.text("kind"), found.number("count"), found.flag("verbose")) == ("b", 4, True)
    assert (found.numbers("numbers"), found.texts("words")) == ([1, 2], ["w"])
    assert (found.pairs("settings"), found.offsets("offsets")) == ({"k": "v"}, {3: 7})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'name' is a required property"),
        ({"name": "x", "nam": 1}, r"unknown argument 'nam' \(valid: name, kind"),
        ({"name": ""}, "name: "),
        ({"name": "x", "kind": "c"}, "kind: 'c' is not one of"),
        ({"name": "x", "count": 10}, "count: 10 is greater than the maximum of 9"),
        ({"name": "x", "count": True}, "count: True is not of type 'integer'"),
        ({"name": "x", "numbers": [-1]}, r"numbers\[0\]: -1 is less than"),
        ({"name": "x", "numbers": []}, "numbers: "),
        ({"name": "x", "settings": {"k": 1}}, r"settings\['k'\]: 1 is not of type 'string'"),
        ({"name": "x", "offsets": {"one": 1}}, "offsets: 'one' does not match"),
    ],
)
def test_invalid_arguments_are_named_in_message(given: dict[str, Json], message: str) -> None:
    with pytest.raises(BadArguments, match=message):
        check(PARAMETERS, given)


def test_lists_and_messages_are_bounded() -> None:
    parameters = {"rows": objects("Rows.", {"value": text("A value.")})}
    rows: list[Json] = [{"value": "x"}]
    assert check(parameters, {"rows": rows * ELEMENTS_MAX}).objects("rows") == rows * ELEMENTS_MAX
    with pytest.raises(BadArguments) as caught:
        check(parameters, {"rows": rows * (ELEMENTS_MAX + 1)})
    assert len(str(caught.value)) < MESSAGE_LENGTH_MAX + 50


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
    ],
)
def test_time_without_zone_is_utc(given: str, expected: int) -> None:
    assert parse_past_time_ms(given, expected) == expected


@pytest.mark.parametrize("given", ["yesterday", "", "9999-99-99"])
def test_malformed_time_is_rejected(given: str) -> None:
    with pytest.raises(BadArguments, match="is not a time"):
        parse_past_time_ms(given, 0)


def test_time_in_future_is_rejected_with_current_time() -> None:
    with pytest.raises(BadArguments, match="is in the future, now is 1970-01-01 00:00:01 UTC"):
        parse_past_time_ms("1970-01-01T00:00:02Z", 1_000)


def test_list_takes_only_its_choices() -> None:
    parameters = {"states": choices("States.", ["Empty", "Ongoing"])}
    assert check(parameters, {"states": ["Ongoing"]}).texts("states") == ["Ongoing"]
    with pytest.raises(BadArguments, match=r"'ongoing' is not one of \['Empty', 'Ongoing'\]"):
        check(parameters, {"states": ["ongoing"]})
