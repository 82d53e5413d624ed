"""Parsing of `sasl.jaas.config`."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.jaas import BadJaas, LoginModule, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_plain_users_are_parsed() -> None:
    found = parse_jaas(
        f'{PLAIN} required\n username="admin"\n password="secret"\n'
        ' user_admin="secret" user_alice="a b;c=\\"d\\"";'
    )
    assert found.short_name == "PlainLoginModule"
    assert found.options["username"] == "admin"
    assert found.users == {"admin": "secret", "alice": 'a b;c="d"'}


def test_module_without_options_is_parsed() -> None:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert parse_jaas(f"{scram} required;") == LoginModule(scram, {})


def test_comments_quotes_and_spaces_are_parsed() -> None:
    found = parse_jaas(
        "a.B Required  x = 'single' y=bare // a remark\n /* and\n one */ z=\"\\n\" ;"
    )
    assert found.options == {"x": "single", "y": "bare", "z": "\n"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "a.B;",
        "a.B required",
        "a.B required x;",
        "a.B required x=;",
        "a.B required =x;",
        "a.B required x=y z;",
        'a.B required x="y;',
        "a.B required; c.D required;",
        "KafkaServer { a.B required; };",
    ],
)
def test_invalid_jaas_is_rejected(text: str) -> None:
    with pytest.raises(BadJaas):
        parse_jaas(text)


def test_error_contains_no_secret() -> None:
    with pytest.raises(BadJaas) as raised:
        parse_jaas('a.B required password="hush" user_x="hush"')
    assert "hush" not in str(raised.value)


@given(st.text())
def test_arbitrary_text_raises_only_bad_jaas(text: str) -> None:
    with contextlib.suppress(BadJaas):
        parse_jaas(text)


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.text(max_size=20)))
def test_quoted_values_round_trip(options: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    assert parse_jaas(f"{PLAIN} required {text};").options == options
