"""Random requests to a registry: each gets a response, errors in Confluent's format."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ..web.client import open_http_client
from .client import CONTENT_TYPE, registry
from .fuzzed import DIGITS, HEX, Fuzz

# Requests per schema of `--schemas`.
REQUESTS_PER_SCHEMA = 5
READ = (
    *("/", "/contexts", "/v1/metadata/id", "/v1/metadata/version", "/schemas", "/schemas/types"),
    *("/schemas/ids/{}", "/schemas/ids/{}/schema", "/schemas/ids/{}/subjects"),
    *("/schemas/ids/{}/versions", "/schemas/guids/{}", "/schemas/guids/{}/ids", "/subjects"),
    *("/subjects/{}/metadata", "/subjects/{}/versions", "/subjects/{}/versions/{}"),
    *("/subjects/{}/versions/{}/schema", "/subjects/{}/versions/{}/referencedby"),
    *("/config", "/config/{}", "/mode", "/mode/{}", "/no/such/{}"),
)
CHANGED = ("/config", "/config/{}", "/mode", "/mode/{}")
# Paths by method. One request in ten uses the path with another method.
PATHS = {
    "GET": READ,
    "HEAD": READ,
    "POST": (
        *("/subjects/{}", "/compatibility/subjects/{}/versions"),
        *("/compatibility/subjects/{}/versions/{}", *["/subjects/{}/versions"] * 3),
    ),
    "PUT": CHANGED,
    "DELETE": (*CHANGED, "/subjects/{}", "/subjects/{}/versions/{}"),
    "PATCH": READ,
    "OPTIONS": READ,
}
PARTS = (
    *(
        "s",
        "t",
        "latest",
        "-1",
        "0",
        "1",
        "2",
        "99",
        "01",
        "%C2%B2",
        "%D9%A3",
        "2147483648",
        DIGITS,
    ),
    *(
        "%00",
        "%0A",
        "%FF",
        "%ED%A0%80",
        "%",
        "%2",
        "%2F",
        ".",
        "..",
        ":.c:s",
        "__GLOBAL",
        "%20",
        "a+b",
    ),
    *("x" * 2000, "00000000-0000-0000-0000-000000000000", "s/", "{}", "%7B%7D", "~", "'", '"'),
)
NAMES = (
    *("offset", "limit", "deleted", "deletedOnly", "permanent", "normalize", "verbose", "force"),
    *(
        "subject",
        "subjectPrefix",
        "latestOnly",
        "format",
        "fetchMaxId",
        "defaultToGlobal",
        "key",
        "value",
    ),
)
VALUES = (
    "true",
    "false",
    "serialized",
    "1",
    "-1",
    DIGITS,
    "%C2%B2",
    "1e9",
    "",
    "%00",
    "%FF",
    "s",
    "a=b",
)
METHODS = (
    *["GET"] * 3,
    *["POST"] * 6,
    "PUT",
    "PUT",
    "DELETE",
    "DELETE",
    "HEAD",
    "PATCH",
    "OPTIONS",
)
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        2**31,
        10**400,
        0.5,
        "",
        "x",
        "AVRO",
        "avro",
        "NONE",
        "full",
        "IMPORT",
        "READONLY",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"properties": [1]},
        {"properties": {"a": [1]}},
        "\ud800",
        HEX,
    ),
    [{"name": "r", "subject": "s", "version": 1}],
    [{"name": "r", "subject": "s", "version": 1}] * 2,
    [{"name": 1, "subject": None, "version": "1"}],
)
KEYS = (
    *(
        "schema",
        "schemaType",
        "references",
        "metadata",
        "ruleSet",
        "id",
        "version",
        "compatibility",
    ),
    *(
        "mode",
        "normalize",
        "alias",
        "compatibilityLevel",
        "defaultMetadata",
        "overrideRuleSet",
        "x",
    ),
)
RAW = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"\xff",
    b"[" * 5000,
    b'{"a":' * 5000,
    b'{"schema": NaN}',
)


class Requests:
    """A source of requests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._fuzz = Fuzz(seed)

    def next(self) -> tuple[str, str, bytes]:
        """Return a method, a target and a body."""
        chance = self._random
        parts = [chance.choice(PARTS if chance.random() < 0.6 else ("s", "1")) for _ in range(2)]
        method = chance.choice(METHODS)
        path = chance.choice(PATHS[method]).format(*parts)
        if chance.random() < 0.4:
            names = [f"{chance.choice(NAMES)}={chance.choice(VALUES)}" for _ in range(3)]
            path += "?" + "&".join(names)
        if chance.random() < 0.1:
            method = chance.choice(METHODS)
        return method, path, self._body()

    def _body(self) -> bytes:
        chance = self._random
        if chance.random() < 0.15:
            return chance.choice(RAW)
        body: dict[str, Any] = {}
        if chance.random() < 0.7:
            content = self._fuzz.compared().content
            body = {"schema": content.text, "schemaType": content.type}
        for _ in range(chance.choice((0, 1, 1, 3))):
            body[chance.choice(KEYS)] = chance.choice(JUNK)
        return json.dumps(body).encode()


@pytest.mark.slow
async def test_random_requests_get_responses_with_confluents_error_format(
    pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(pytestconfig.getoption("--seed"))
    statuses: dict[int, int] = {}
    async with registry() as (_, [client]):
        for _ in range(REQUESTS_PER_SCHEMA * pytestconfig.getoption("--schemas")):
            method, path, body = requests.next()
            async with open_http_client(client.endpoint) as http:
                response = await http.ask(path, method, {"Content-Type": CONTENT_TYPE}, body)
            sent = method, path, body, response.status
            statuses[response.status] = statuses.get(response.status, 0) + 1
            assert response.status < 500, sent
            if response.status >= 400 and method != "HEAD":
                content = response.json()
                assert content.keys() == {"error_code", "message"}, sent
                assert str(content["error_code"]).startswith(str(response.status)), sent
                assert isinstance(content["message"], str), sent
            assert not [each for each in caplog.records if each.levelname == "ERROR"], sent
    assert {200, 404, 422} <= statuses.keys()
    print(f"\nfigures: {sum(statuses.values()):,} random requests to the registry: {statuses}")


@pytest.mark.parametrize("headers", [{"Host": "example.com:x"}, {"Origin": "http://elsewhere"}])
async def test_http_server_errors_have_confluents_format(headers: dict[str, str]) -> None:
    async with registry() as (_, [client]), open_http_client(client.endpoint) as http:
        response = await http.ask("/subjects", "GET", headers)
        assert response.status in (403, 421)
        assert response.json()["error_code"] == response.status
        assert response.json()["message"]
