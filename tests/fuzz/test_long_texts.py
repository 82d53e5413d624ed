"""Strings of maximum length: each request gets a response, even if the error quotes them."""

from __future__ import annotations

import copy
import logging
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import ERROR_MESSAGE_BYTES_MAX, decode, encode_bytes
from kbroker.protocol.messages import request_class
from kbroker.protocol.messages.cluster import UpdateFeaturesResponse
from kbroker.protocol.primitives import MAX_STRING_BYTES
from kbroker.protocol.schema import Struct, fields

from ..brokers import started
from ..wire import connected
from .harness import ErrorCollector, exchange
from .test_bodies import check_sent
from .tokens import tokens
from .world import VALID, make_world

LONG_STRINGS = ("x" * MAX_STRING_BYTES, "\x00" * MAX_STRING_BYTES, "€" * (MAX_STRING_BYTES // 3))


def strings_of(message: Any, version: int) -> Iterator[tuple[Any, str, int | None]]:
    """Yield all strings of a message: struct, field name, and the index in an array or None."""
    for field in fields(type(message)):
        if not field.present(version):
            continue
        value = getattr(message, field.name)
        if field.kind == "string":
            if field.array:
                yield from ((message, field.name, index) for index in range(len(value or ())))
            else:
                yield message, field.name, None
        elif not isinstance(field.kind, str):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Struct):
                    yield from strings_of(each, version)


def lengthen_strings(message: Any, version: int) -> Iterator[tuple[str, Any]]:
    """Yield the message with one string at a time at maximum length."""
    for at in range(len(list(strings_of(message, version)))):
        for text in LONG_STRINGS:
            changed = copy.deepcopy(message)
            struct_, name, index = list(strings_of(changed, version))[at]
            if index is None:
                setattr(struct_, name, text)
            else:
                getattr(struct_, name)[index] = text
            yield f"{name} = {text[:1]!r}...", changed


@pytest.mark.slow
@pytest.mark.parametrize("key", VALID, ids=lambda key: key.name)
async def test_request_with_longest_strings_gets_response(key: ApiKey) -> None:
    apis = load_apis()
    alarm = ErrorCollector()
    logging.getLogger("kbroker").addHandler(alarm)
    try:
        async with started() as broker:
            async with connected(broker.endpoint) as wire:
                world = await make_world(wire)
            for version in apis[key].versions:
                valid = VALID[key](world, random.Random(version))
                if key == ApiKey.PRODUCE:
                    valid.acks = 1
                for field, message in [("client id", valid), *lengthen_strings(valid, version)]:
                    client_id = LONG_STRINGS[0] if field == "client id" else "c"
                    head = struct.pack(">hhih", key, version, 1, len(client_id))
                    head += client_id.encode()
                    if request_class(key).is_flexible(version):
                        head += b"\x00"
                    frame = head + b"".join(each.data for each in tokens(message, version))
                    sent, cut_off = await exchange(broker.node, apis, frame)
                    assert not cut_off, f"version {version}, {field}"
                    check_sent(frame, sent, f"version {version}, {field}")
            assert broker.node.context.error_log.unhandled_errors == 0, alarm.messages
    finally:
        logging.getLogger("kbroker").removeHandler(alarm)
    assert alarm.messages == []


def test_long_error_message_is_truncated_between_characters() -> None:
    for text in ("x" * 4096, "", "€" * 1365):
        response = UpdateFeaturesResponse(error_message=text)
        for version in (0, 1):
            got, _ = decode(UpdateFeaturesResponse, encode_bytes(response, version), version)
            assert got.error_message == text
    for text in ("x" * 4097, "€" * 20_000, "ab" + "€" * 20_000, "😀" * 1_000_000):
        response = UpdateFeaturesResponse(error_message=text)
        got, _ = decode(UpdateFeaturesResponse, encode_bytes(response, 0), 0)
        assert got.error_message is not None
        cut = got.error_message.removesuffix("...")
        assert text.startswith(cut)
        assert (
            ERROR_MESSAGE_BYTES_MAX - 8
            <= len(got.error_message.encode())
            <= (ERROR_MESSAGE_BYTES_MAX)
        )
