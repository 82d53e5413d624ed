"""The parts of requests to the registry."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.store import ID_MAX
from kbroker.schemas.requests import (
    body_of,
    client_of,
    content_in,
    flag,
    number_in,
    page,
    schema_id_of,
    subject_of,
)


def request(query: str = "", body: bytes = b"", **path: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "query_string": query.encode(), "path_params": path, "headers": []}
    return Request(scope, receive)


def test_subject_is_unquoted() -> None:
    assert subject_of(request(subject="a%2Fb")) == "a/b"
    assert subject_of(request()) is None


@pytest.mark.parametrize("text", ["", "-1", "x", "\u0661", str(ID_MAX + 1), "9" * 10_000])
def test_invalid_schema_id_is_not_found(text: str) -> None:
    with pytest.raises(RegistryError, match="HTTP 404 Not Found"):
        schema_id_of(request(id=text))


def test_schema_id_may_be_the_maximum() -> None:
    assert schema_id_of(request(id=str(ID_MAX))) == ID_MAX


def test_client_without_address_has_empty_name() -> None:
    assert client_of(request()) == ""


@pytest.mark.parametrize(
    ("query", "is_set"), [("deleted=True", True), ("deleted=1", False), ("", False)]
)
def test_flag_is_set_by_the_word_true(query: str, is_set: bool) -> None:
    assert flag(request(query), "deleted") is is_set


@pytest.mark.parametrize(
    ("query", "rows"),
    [("", "abcd"), ("offset=1&limit=2", "bc"), ("limit=x", "abcd"), ("limit=" + "9" * 11, "abcd")],
)
def test_page_is_selected_by_offset_and_limit(query: str, rows: str) -> None:
    assert page(request(query), [*"abcd"]) == [*rows]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"[" * 100_000, b'{"schema":"\\ud800"}', b'{"a":[' + b"0," * 60_000 + b"0]}"],
)
async def test_body_that_is_no_object_is_rejected(body: bytes) -> None:
    with pytest.raises(RegistryError, match=r"request body: (invalid|expected a) JSON"):
        await body_of(request(body=body))


async def test_body_is_decoded() -> None:
    assert await body_of(request(body=b'{"schema": 1}')) == {"schema": 1}


def test_body_without_schema_is_rejected() -> None:
    with pytest.raises(RegistryError):
        content_in({"schema": 1})


@pytest.mark.parametrize("value", [True, -2, ID_MAX + 1, "1"])
def test_number_out_of_range_is_rejected(value: object) -> None:
    with pytest.raises(RegistryError, match="id: expected an integer"):
        number_in({"id": value}, "id")


def test_missing_number_is_minus_one() -> None:
    assert number_in({}, "id") == number_in({"id": None}, "id") == -1
    assert number_in({"id": 7}, "id") == 7
