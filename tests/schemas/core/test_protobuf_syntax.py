"""Syntax of Protobuf files."""

from __future__ import annotations

import base64

import pytest

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.protobuf import ProtobufSchema
from kbroker.schemas.core.protobuf_building import descriptor_of

from .protobuf_files import HEAD, WHOLE, message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "message M {",
        message("int32 a = 1; int32 b = 1;"),
        message("int32 a = 0;"),
        message("int32 a;"),
        message("Unknown a = 1;"),
        message("map<double, int32> a = 1;"),
        'syntax = "proto9"; message M {}',
        HEAD + 'import "other.proto"; message M {}',
        "message M { option a = " + "{" * 1000 + ";",
        base64.b64encode(b"nonsense").decode(),
    ],
)
def test_malformed_protobuf_file_is_rejected(text: str) -> None:
    with pytest.raises(RegistryError):
        ProtobufSchema(text)


def test_comments_and_white_space_do_not_change_canonical_text() -> None:
    made = ProtobufSchema(WHOLE)
    assert "about it" not in made.canonical
    assert ProtobufSchema(made.canonical).canonical == made.canonical
    assert (
        ProtobufSchema(WHOLE.replace("\n", " ").replace("// about it", "")).canonical
        == made.canonical
    )
    assert made.own.enums["p.M.E"] == {"X": 0, "Y": -1, "Z": 0}


HEX = "0x" + "f" * 6000


@pytest.mark.parametrize("number", [HEX, "9" * 5000, "0" + "7" * 5000, str(2**40), str(-(2**40))])
@pytest.mark.parametrize(
    "text",
    [
        "message M { optional int32 a = %s; }",
        "message M { optional int32 a = 1 [default = %s]; }",
        "message M { reserved %s; }",
        "message M { reserved 1 to %s; }",
        "message M { extensions 100 to %s; }",
        "enum E { A = %s; }",
        "enum E { A = 0; reserved %s; }",
        "message M { } extend M { optional int32 a = %s; }",
        "message M { repeated group G = %s { } }",
        'option java_package = "x"; option optimize_for = %s;',
    ],
)
def test_number_of_any_length_is_parsed_or_rejected(text: str, number: str) -> None:
    message = ""
    try:
        descriptor_of(f'syntax = "proto2"; {text % number}', {})
    except RegistryError as error:
        message = error.message
    assert len(message) < 1000
