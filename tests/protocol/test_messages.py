from __future__ import annotations

import subprocess
import sys

import pytest

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import Message, Struct


def test_every_key_has_a_request_and_a_response() -> None:
    for key in ApiKey:
        request, response = messages.request_class(key), messages.response_class(key)
        assert request.__name__ == key.api_name + "Request"
        assert response.__name__ == key.api_name + "Response"
        assert request.KEY == response.KEY == key
        assert request.VERSIONS == response.VERSIONS
        assert request.FLEXIBLE == response.FLEXIBLE


def test_api_key_may_be_an_int() -> None:
    assert messages.request_class(12) is messages.request_class(ApiKey.HEARTBEAT)


@pytest.mark.parametrize("key", [-1, 4, 52, 82, 0x7FFF])
def test_unknown_key_is_a_key_error(key: int) -> None:
    with pytest.raises(KeyError):
        messages.request_class(key)
    with pytest.raises(KeyError):
        messages.response_class(key)


def test_every_class_has_slots_and_a_docstring() -> None:
    for key in ApiKey:
        for cls in (messages.request_class(key), messages.response_class(key)):
            assert issubclass(cls, Message)
            assert cls.__doc__
            assert not hasattr(cls(), "__dict__")
            for part in vars(cls).values():
                if isinstance(part, type):
                    assert issubclass(part, Struct)
                    assert not hasattr(part(), "__dict__")


def test_message_modules_are_imported_on_demand() -> None:
    program = """
import sys
from kbroker.protocol import messages
family = "kbroker.protocol.messages.quotas"
assert family not in sys.modules
messages.request_class(48)
assert family in sys.modules
assert "kbroker.protocol.messages.fetch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


SECRETS = {"auth_bytes", "hmac", "salted_password"}


def test_secrets_are_hidden_in_repr() -> None:
    """Config values are hidden as well: they may contain passwords."""
    seen = set()
    for key in ApiKey:
        for cls in (messages.request_class(key), messages.response_class(key)):
            for part in (cls, *_parts(cls)):
                names = SECRETS & part.DEFAULTS.keys()
                if key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
                    names |= {"value"} & part.DEFAULTS.keys()
                shown = repr(part(**dict.fromkeys(names, b"s3cret")))
                assert "s3cret" not in shown
                assert all(f"{name}=..." in shown for name in names)
                seen |= names
    assert seen == SECRETS | {"value"}


def _parts(cls: type[Struct]) -> list[type[Struct]]:
    return [each for each in vars(cls).values() if isinstance(each, type)]
