"""Random changes of schemas of all types; most results are not valid schemas."""

from __future__ import annotations

import json
import random

from kbroker.schemas.core.registry import CheckTask
from kbroker.schemas.core.store import Registered
from kbroker.schemas.core.values import AVRO, JSON, PROTOBUF, Content, Level

from .attacks import ATTACKS

SIZE_MAX = 30_000
HEX = "0x" + "f" * 6000
DIGITS = "9" * 5000
REFERENCES = (
    *("#", "#/", "#/$defs/0", "#name", "#other", "http://[", "http://example.com/a#name", "b#c"),
    *(f"#/required/{each}" for each in ("0", "1", "-1", "²", "٣", "x", DIGITS)),
)
WORDS = {
    AVRO: (
        *('"int"', '"null"', "null", "true", "1", "-1", "1e999", "NaN", DIGITS, "[]", "{}", '""'),
        *('"record"', '"enum"', '"fixed"', '"array"', '"map"', '"error"', '"a.b"', '"."', '"\\ud800"'),
        *('"type":', '"name":', '"fields":', '"default":', '"aliases":', '"symbols":', '"items":'),
        *('"namespace":', '"size":', '"logicalType":', "{", "}", "[", "]", ",", ":"),
    ),
    JSON: (
        *('"$ref":', '"#"', '"#/"', '"#/$defs/0"', '"#/allOf/0"', '"#/' + DIGITS + '"', '"#/allOf/²"'),
        *('"#/allOf/٣"', '"http://["', '"$id":', '"$anchor":', '"$schema":', '"$defs":', '"items":'),
        '"http://json-schema.org/draft-03/schema#"',
        '"http://json-schema.org/draft-04/schema#"',
        '"https://json-schema.org/draft/2020-12/schema"',
        *('"type":', '"anyOf":', '"allOf":', '"oneOf":', '"not":', '"enum":', '"const":', '"required":'),
        *('"properties":', '"patternProperties":', '"additionalProperties":', '"dependencies":'),
        *('"dependentRequired":', '"prefixItems":', '"additionalItems":', '"multipleOf":', '"pattern":'),
        *('"minimum":', '"maximum":', '"(a{99999999999})"', '"((((("', "true", "false", "null", "1"),
        *("-0.5", "1e308", "1e999", DIGITS, "{", "}", "[", "]", ",", ":", '""', '"\\ud800"'),
    ),
    PROTOBUF: (
        *("syntax = ", '"proto2";', '"proto3";', "edition = ", '"2023";', "package ", "import ", "public "),
        *("message M ", "enum E ", "oneof o ", "extend M ", "service S ", "rpc R (M) returns (M);"),
        *("group G = 1 ", "map<string, M> ", "reserved ", "extensions ", "to max;", "option ", "a = 1;"),
        *("string s = ", "[default = ", "[deprecated = true]", "json_name = ", HEX, DIGITS, "-1", "0"),
        *("01777777777777777777777", "19000", "536870912", "2147483648", "1e5", "nan", '"\\x"', '"\\777"'),
        *('"\\U00110000"', '"\\ud800"', "'", '"', "{", "}", "[", "]", "(", ")", "<", ">", ";", "=", ",", "."),
        *("/*", "//", "*/", " ", "\n", ".a.b", "a..b", "²"),
    ),
}  # fmt: skip
FILE = """syntax = "proto2"; package p.q; import "google/protobuf/any.proto"; // text
message M {
  optional int32 a = 1 [default = -0x7f, deprecated = true]; /* more */
  optional string s = 2 [default = "\\x41\\101\\n", json_name = "t"];
  oneof o { M m = 3; google.protobuf.Any any = 4; }
  map<string, E> e = 5;
  repeated group G = 6 { optional bytes b = 1; }
  reserved 10 to 20, 30; reserved 'x'; extensions 100 to max;
  enum E { option allow_alias = true; A = 0; B = 0; C = -1; }
}
extend M { optional M n = 100; }
service S { rpc R (stream M) returns (M) { } }
"""
SEEDS = {
    AVRO: (
        '"string"',
        json.dumps(
            {
                "type": "record",
                "name": "R",
                "namespace": "a.b",
                "aliases": ["Q"],
                "fields": [
                    {"name": "a", "type": ["null", "int"], "default": None, "aliases": ["z"]},
                    {"name": "b", "type": {"type": "array", "items": "R"}, "default": []},
                    {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
                    {"name": "d", "type": {"type": "fixed", "name": "F", "size": 4}},
                    {"name": "e", "type": {"type": "map", "values": ["F", "E"]}},
                ],
            }
        ),
    ),
    JSON: (
        "true",
        json.dumps(
            {
                "$id": "http://example.com/a",
                "type": "object",
                "required": ["a"],
                "properties": {
                    "a": {"type": ["string", "null"], "pattern": "^a", "maxLength": 3},
                    "b": {"type": "array", "items": [{"$ref": "#/$defs/0"}], "minItems": 1},
                    "c": {"anyOf": [{"const": 1}, {"$ref": "#name"}], "multipleOf": 0.5},
                    "d": {"allOf": [{"minimum": 1}, {"not": {"enum": [1, "x", None]}}]},
                },
                "patternProperties": {"^x": {"type": "integer"}},
                "additionalProperties": {"$ref": "#"},
                "dependencies": {"a": ["b"], "b": {"type": "object"}},
                "$defs": {"0": {"$anchor": "name", "type": "number"}},
            }
        ),
    ),
    PROTOBUF: (
        'syntax = "proto3"; message M {}',
        FILE,
        "CgFhEgFwIg8KAU0SCgoBYRgBIAEoBVIBYQ==",
    ),
}


class Fuzz:
    """A source of schemas and of pairs of schemas to compare."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def compared(self) -> CheckTask:
        """Return a task that compares schemas of one type."""
        kind = self._random.choice((AVRO, JSON, PROTOBUF))
        content = Content(kind, self.text(kind))
        old = Registered("s", 1, 1, Content(kind, self.text(kind)))
        compared = CheckTask(content, {}, Level.FULL, self._random.random() < 0.5, ((old, {}),))
        return compared if self._random.random() < 0.8 else compared._replace(earlier=())

    def text(self, kind: str) -> str:
        """Return a valid schema or a changed one."""
        text = self._random.choice(SEEDS[kind])
        if self._random.random() < 0.1:
            attack = self._random.choice([*ATTACKS.values()])(self._random.choice((200, 3000)))
            text = attack.text if attack.type == kind else text
        if kind == JSON and self._random.random() < 0.6:
            return json.dumps(self._grown(json.loads(SEEDS[JSON][1]), 3))[:SIZE_MAX]
        for _ in range(self._random.choice((0, 0, 1, 1, 3))):
            text = self._changed(text, kind)
        return text[:SIZE_MAX]

    def _changed(self, text: str, kind: str) -> str:
        chance = self._random
        at, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        word = chance.choice(WORDS[kind])
        match chance.randrange(6):
            case 0:
                return text[:at] + word + text[at:]
            case 1:
                return text[:at] + word + text[min(end, at + 10) :]
            case 2:
                return text[:at] + text[end:]
            case 3:
                return text[:at] + text[at:end] * chance.choice((2, 50)) + text[end:]
            case 4:
                return text[:at] + word * chance.choice((2, 300)) + text[at:]
        other = chance.choice(SEEDS[kind])
        return text[:at] + other[chance.randint(0, len(other)) :]

    def _grown(self, node: object, depth: int) -> object:
        """Return a JSON Schema with random values in random places. Most results are valid JSON."""
        chance = self._random
        if chance.random() < 0.03:
            return self._value(depth)
        if isinstance(node, dict):
            made = {key: self._grown(each, depth) for key, each in node.items()}
            if chance.random() < 0.1:
                made[self._key()] = self._value(depth)
            return made
        return [self._grown(each, depth) for each in node] if isinstance(node, list) else node

    def _key(self) -> str:
        return self._random.choice(
            [each[1:-2] for each in WORDS[JSON] if each.endswith(":")] or ["x"]
        )

    def _value(self, depth: int) -> object:
        chance = self._random
        if chance.random() < 0.2:
            return {"$ref": chance.choice(REFERENCES)}
        if depth and chance.random() < 0.5:
            some = [self._value(depth - 1) for _ in range(chance.randint(0, 3))]
            return some if chance.random() < 0.4 else {self._key(): each for each in some}
        texts = ["a", "string", "x", "^a$"]
        return chance.choice([None, True, False, 0, -1, 0.5, 1e308, 10**400, *texts])
